-- A store of format 5, as an SQLite without FTS5 writes it: every later version must read it.
PRAGMA application_id = 1836016744;
PRAGMA user_version = 5;
BEGIN TRANSACTION;
CREATE TABLE item (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: a larger one was added later
    modality INTEGER NOT NULL REFERENCES modality (number),
    id TEXT NOT NULL,
    code BLOB NOT NULL CHECK (length(code) = 2),
    kind TEXT NOT NULL CHECK (kind IN ('learned', 'hashed')),
    text TEXT,
    uri TEXT,
    labels TEXT,
    extra TEXT, refinement BLOB CHECK (length(refinement) <= 128), checksum INTEGER,
    UNIQUE (modality, id)
);
INSERT INTO "item" VALUES(1,1,'Foto-1',X'ABC0','learned',NULL,'fotos/1.jpg','["Meer", 7]','{"jahr": 2006}',X'0180',1965304783);
INSERT INTO "item" VALUES(3,2,'Satz-1',X'1230','hashed','ein rotes Boot, „schön“',NULL,NULL,NULL,NULL,631249451);
INSERT INTO "item" VALUES(4,2,'Foto-1',X'FFF0','hashed','ein Foto',NULL,'["meer"]',NULL,NULL,3437342390);
CREATE TABLE item_label (label INTEGER NOT NULL, item INTEGER NOT NULL, PRIMARY KEY (label, item)) WITHOUT ROWID;
INSERT INTO "item_label" VALUES(1,1);
INSERT INTO "item_label" VALUES(2,1);
INSERT INTO "item_label" VALUES(3,4);
CREATE TABLE label (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, folded TEXT NOT NULL, items INTEGER NOT NULL DEFAULT 0);
INSERT INTO "label" VALUES(1,'7','7',1);
INSERT INTO "label" VALUES(2,'Meer','meer',1);
INSERT INTO "label" VALUES(3,'meer','meer',1);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('n_bits','12');
CREATE TABLE modality (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
INSERT INTO "modality" VALUES(1,'image');
INSERT INTO "modality" VALUES(2,'text');
CREATE TABLE removed (step INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL);
INSERT INTO "removed" VALUES(1,2);
INSERT INTO "removed" VALUES(2,5);
CREATE INDEX item_modality ON item (modality, kind);
CREATE INDEX label_folded ON label (folded);
CREATE TRIGGER item_label_added AFTER INSERT ON item_label
    BEGIN UPDATE label SET items = items + 1 WHERE number = new.label; END;
CREATE TRIGGER item_label_removed AFTER DELETE ON item_label
    BEGIN UPDATE label SET items = items - 1 WHERE number = old.label; END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('item',5);
INSERT INTO "sqlite_sequence" VALUES('removed',2);
COMMIT;
