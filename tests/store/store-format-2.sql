-- A store of format 2, as `sqlite3 items.db .dump` shows it: every later version must read it.
PRAGMA application_id = 1836016744;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('n_bits','12');
CREATE TABLE modality (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
INSERT INTO "modality" VALUES(1,'image');
INSERT INTO "modality" VALUES(2,'text');
CREATE TABLE item (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: a larger one was added later
    modality INTEGER NOT NULL REFERENCES modality (number),
    id TEXT NOT NULL,
    code BLOB NOT NULL CHECK (length(code) = 2),
    kind TEXT NOT NULL CHECK (kind IN ('learned', 'hashed')),
    text TEXT,
    uri TEXT,
    labels TEXT,
    extra TEXT,
    UNIQUE (modality, id)
);
INSERT INTO "item" VALUES(1,1,'Foto-1',X'ABC0','learned',NULL,'fotos/1.jpg','["Meer", 7]','{"jahr": 2006}');
INSERT INTO "item" VALUES(3,2,'Satz-1',X'1230','hashed','ein rotes Boot, „schön“',NULL,NULL,NULL);
INSERT INTO "item" VALUES(4,2,'Foto-1',X'FFF0','hashed','ein Foto',NULL,NULL,NULL);
CREATE INDEX item_modality ON item (modality, kind);
CREATE TABLE removed (step INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL);
INSERT INTO "removed" VALUES(1,2);
INSERT INTO "removed" VALUES(2,5);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('item',5);
INSERT INTO "sqlite_sequence" VALUES('removed',2);
COMMIT;
