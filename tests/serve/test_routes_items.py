"""Items and their pictures over HTTP, adding and removing, also concurrently."""

from __future__ import annotations

import io
import json
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import quote

import pytest
from serve_tools import picture

from little_world import huge_png
from modalhash.engine import AuditLog
from modalhash.serve.schemas import AddResponse, Item, ItemsResponse, RelabelResponse, ValuesResponse


def add_picture(client, data, **fields):
    return client.post("/items", files={"image": ("../../evil.html", data, "text/html")}, data=fields)


@pytest.fixture
def writer(make_client):
    return make_client(writable=True)


def test_an_item(client):
    found = client.get("/items/photos/0.png").json()
    Item.model_validate(found)
    assert found["media"] == "/media/photos%2F0.png?modality=image"
    assert "uri" not in found
    assert client.get("/items/nosuch").status_code == 404
    assert client.get("/items/photos%2F0.png?modality=text").status_code == 404
    assert client.get("/items/photos%2F0.png?modality=sound").status_code == 422
    assert client.get("/items/").status_code in (404, 422)


def test_items_newest_first(client, engine):
    engine.add([{"id": f"day {day}", "text": "a red ball", "taken": f"2019-06-{day:02d}"} for day in (3, 14, 9)])
    engine.add([{"id": "undated", "text": "a red ball", "labels": ["red"]}])
    found = client.get("/items?modality=text&limit=4").json()
    ItemsResponse.model_validate(found)
    assert [item["id"] for item in found["items"]] == ["day 14", "day 9", "day 3", "undated"]
    assert (found["total"], found["more"]) == (64, True)
    rest = client.get("/items?modality=text&limit=200&offset=4").json()
    assert (len(rest["items"]), rest["more"]) == (60, False)
    assert {item["modality"] for item in client.get("/items?limit=200").json()["items"]} == {"image", "text"}
    red = client.get("/items", params={"where": "label = red and taken >= 2019-06-01"}).json()
    assert red == {"items": [], "total": 0, "more": False}
    assert client.get("/items?limit=201").status_code == 422
    assert client.get("/items?modality=sound").status_code == 422
    wrong = client.get("/items", params={"where": "label = reed"})
    assert (wrong.status_code, wrong.json()["error"][:28]) == (422, "where: no item has the label")


def test_values_of_a_field(client, engine):
    engine.add([{"id": str(n), "text": "a red ball", "camera": ("X100", "D70")[n % 3 == 0]} for n in range(4)])
    answer = client.get("/values?field=camera").json()
    ValuesResponse.model_validate(answer)
    assert list(answer["values"].items()) == [("D70", 2), ("X100", 2)]
    assert client.get("/values?field=camera&limit=1").json() == {"values": {"D70": 2}}
    assert client.get("/values?field=lens").json() == {"values": {}}
    assert "quote" in client.get("/values?field=%22").json()["error"]
    assert client.get("/values").status_code == 422


def test_an_item_says_whether_its_file_goes_with_it(writer):
    assert "stored" not in writer.get("/items/photos/0.png").json()
    added = add_picture(writer, picture(), id="mine").json()["added"]
    assert added["stored"] is writer.get("/items/mine").json()["stored"] is True


def test_any_id_leads_to_its_item(serve, engine):
    ids = ["../../etc/passwd", "a b/ü?#%2F&=", "..", "…", "\\x", "//x", "a;b", "'\"<>", "a\nb", "/"]
    engine.add([{"id": id, "text": "a red ball"} for id in ids])
    with serve() as server:
        for id in ids:
            connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.request("GET", f"/items/{quote(id, safe='')}")
            assert json.load(connection.getresponse())["id"] == id
            connection.close()


def test_pictures_by_their_content(client, engine, tmp_path):
    whole = client.get("/media/photos/0.png")
    assert whole.headers["content-type"] == "image/png"
    assert whole.content == engine.path_of(engine.get("photos/0.png")).read_bytes()
    assert client.get("/media/photos/0.png", headers={"Range": "bytes=9-1"}).content == whole.content
    (tmp_path / "jpeg.png").write_bytes(picture(kind="JPEG"))
    engine.add([{"id": "jpeg", "path": str(tmp_path / "jpeg.png")}])
    assert client.get("/media/jpeg").headers["content-type"] == "image/jpeg"


def test_small_pictures(client, engine, tmp_path):
    from PIL import Image

    (tmp_path / "wide.jpg").write_bytes(picture(size=(900, 300), kind="JPEG"))
    engine.add([{"id": "wide", "path": str(tmp_path / "wide.jpg")}])
    small = client.get("/media/wide?size=200")
    assert small.headers["content-type"] == "image/webp"
    with Image.open(io.BytesIO(small.content)) as seen:
        assert seen.size == (192, 64)
    (tmp_path / "wide.jpg").write_bytes(picture(size=(300, 900), kind="JPEG"))
    os.utime(tmp_path / "wide.jpg", ns=(1, 1))
    with Image.open(io.BytesIO(client.get("/media/wide?size=200").content)) as seen:
        assert seen.size == (64, 192), "a changed file is shown as it is now"
    for wrong in ("0", "15", "1025", "x", "1e3", "9" * 5000):
        assert client.get(f"/media/wide?size={wrong}").status_code == 422


def test_what_is_no_picture_is_not_served(client, engine, tmp_path):
    photo = engine.path_of(engine.get("photos/0.png")).read_bytes()
    for name, content, status in (
        ("page.png", b"<html><script>alert(1)</script>", 415),
        ("drawing.svg", b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', 415),
        ("cut.png", picture()[:20], 415),
        ("passwd.png", b"root:x:0:0", 415),
    ):
        path = tmp_path / name
        path.write_bytes(photo)
        engine.add([{"id": name, "path": str(path)}])
        path.write_bytes(content)
        for url in (f"/media/{name}", f"/media/{name}?size=64"):
            answer = client.get(url)
            assert answer.status_code == status, answer.text
            assert answer.headers["content-type"] == "application/json"
            assert str(tmp_path) not in answer.text
    path.unlink()
    gone = client.get("/media/passwd.png").json()["error"]
    assert "is missing" in gone
    assert gone.endswith("(expected passwd.png next to the engine's folder)")
    assert str(tmp_path) not in gone
    assert client.get("/media/passwd.png?size=64").status_code == 404
    assert client.get("/media/items.csv:3").status_code == 404


def test_pictures_of_an_archive(client, engine):
    photo = engine.path_of(engine.get("photos/0.png")).read_bytes()
    beside = engine.path.parent / "more photos.zip"
    with zipfile.ZipFile(beside, "w") as archive:
        archive.writestr("red/ä?.png", photo)
    assert engine.add(beside).added == 1
    item = client.get("/items/" + quote("more photos.zip/red/ä?.png")).json()
    assert item["labels"] == ["red"]
    whole = client.get(item["media"])
    assert (whole.content, whole.headers["content-type"]) == (photo, "image/png")
    assert client.get(item["media"] + "&size=64").headers["content-type"] == "image/webp"
    assert client.post("/search", json={"id": item["id"], "asymmetric": True}).status_code == 200
    beside.unlink()
    gone = client.get(item["media"])
    assert gone.status_code == 404
    assert gone.json()["error"].endswith("(expected more photos.zip!/red/ä?.png next to the engine's folder)")


def test_read_only_says_how_to_write(client):
    assert "--writable" in client.post("/items", json={"text": "a red ball"}).json()["error"]
    assert client.delete("/items/photos/0.png").status_code == 403
    assert client.get("/items/photos/0.png").status_code == 200


def test_add_and_remove_a_text(writer, engine):
    answer = writer.post("/items", json={"text": "a red ball", "id": "new", "labels": ["red"]})
    assert answer.status_code == 201
    AddResponse.model_validate(answer.json())
    assert answer.json()["items"] == 121
    assert engine.get("new").kind == "hashed"
    again = writer.post("/items", json={"text": "other", "id": "new"})
    assert (again.status_code, "remove it first" in again.json()["error"]) == (409, True)
    assert writer.delete("/items/new").json() == {"removed": 1, "items": 120}
    assert writer.delete("/items/new").status_code == 404
    assert writer.delete("/items/new?modality=sound").status_code == 422


def test_relabel_an_item(writer, client, engine):
    blue = next(one for one in engine.items() if one.modality == "image" and set(one.labels) == {"blue", "square"})
    answer = writer.patch("/items/photos%2F0.png?modality=image", json={"labels": ["blue", "square"]})
    assert answer.status_code == 200
    RelabelResponse.model_validate(answer.json())
    (item,) = answer.json()["relabelled"]
    assert (item["labels"], item["kind"], item["code"]) == (["blue", "square"], "learned", blue.code.hex())
    assert answer.json()["unknown_labels"] == []
    answer = writer.patch("/items/photos/0.png", json={"labels": ["blue", "azure"]}).json()
    assert answer["unknown_labels"] == ["azure"]
    assert writer.get("/items/photos/0.png").json()["labels"] == ["blue", "azure"]
    assert writer.post("/search", json={"text": "a box", "labels": ["azure"]}).json()["hits"][0]["id"] == "photos/0.png"
    noted = AuditLog.of_engine(engine.path).tail(2)
    assert [(line["what"], line["state"]) for line in noted] == [("relabel", "begun"), ("relabel", "done")]
    assert noted[0]["labels"] == ["blue", "azure"]
    for path, body, status in (
        ("/items/nobody", {"labels": []}, 404),
        ("/items/photos/0.png?modality=text", {"labels": []}, 404),
        ("/items/photos/0.png?modality=sound", {"labels": []}, 422),
        ("/items/photos/0.png", {"labels": "blue"}, 422),
        ("/items/photos/0.png", {}, 422),
        ("/items/photos/0.png", {"labels": ["a\0b"]}, 422),
    ):
        assert writer.patch(path, json=body).status_code == status, (path, body)
    assert "--writable" in client.patch("/items/photos/0.png", json={"labels": []}).json()["error"]


def test_add_and_remove_a_picture(writer, engine):
    data = picture()
    answer = add_picture(writer, data, labels=["red", "circle"])
    assert answer.status_code == 201, answer.text
    item = answer.json()["added"]
    assert item["labels"] == ["red", "circle"]
    assert item["id"].startswith("image-")
    assert writer.get(item["media"]).content == data
    stored = list((engine.path / "media").iterdir())
    assert [path.read_bytes() for path in stored] == [data]
    assert stored[0].suffix == ".png", "by its content, whatever the client called it"
    assert add_picture(writer, data).status_code == 409
    assert len(list((engine.path / "media").iterdir())) == 1, "nothing is left of what was not added"
    assert writer.delete(f"/items/{item['id']}").json()["removed"] == 1
    assert list((engine.path / "media").iterdir()) == []


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b"", 415, "empty"),
        (b"<svg/>", 415, "not a picture"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415, "not a picture"),
        (picture()[:60], 415, "broken|truncated"),
        (huge_png(7_000), 413, "7,000 × 7,000 pixels; the limit is 40,000,000"),
        (huge_png(), 413, "far too many pixels"),
    ],
    ids=["empty", "svg", "eps", "cut", "large", "huge"],
)
def test_a_picture_that_is_none(writer, engine, data, status, message):
    import re

    for answer in (add_picture(writer, data), writer.post("/search", files={"image": ("a.png", data)})):
        assert answer.status_code == status, answer.text
        assert re.search(message, answer.json()["error"])
    assert not (engine.path / "media").exists() or not list((engine.path / "media").iterdir())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": ""},
        {"text": "x", "path": "/etc/passwd"},
        {"text": "x", "uri": "/etc/passwd"},
        {"text": "x", "id": ""},
        {"text": "x", "id": "a\0b"},
        {"text": "x", "id": "x" * 1001},
        {"text": "x", "labels": [1]},
        {"text": "x", "labels": ["y" * 201]},
        {"text": "..."},
    ],
)
def test_an_item_that_is_none(writer, engine, body):
    assert writer.post("/items", json=body).status_code == 422
    assert len(engine) == 120


def test_forms_that_are_none(writer):
    file = ("a.png", picture())
    assert writer.post("/items", files={"image": file}, data={"text": "both"}).status_code == 422
    assert writer.post("/items", files={"file": file}).status_code == 422
    assert writer.post("/items", files=[("image", file), ("image", file)]).status_code == 422
    assert writer.post("/items", files={"image": file}, data={"id": ["a", "b"]}).status_code == 422
    assert writer.post("/items", files={"image": (None, "a text")}).status_code == 422
    assert writer.post("/search", files={"image": file}, data={"k": "many"}).status_code == 422


def test_many_at_once_do_not_get_in_each_others_way(writer, engine):
    """Adding, removing and searching at the same time: afterwards exactly what was answered is there."""

    def work(n):
        ids = (f"own-{n}", "shared")
        statuses = [writer.post("/items", json={"text": f"a red ball {n}", "id": id}).status_code for id in ids]
        statuses.append(writer.post("/search", json={"text": "a red ball", "k": 200}).status_code)
        statuses.append(add_picture(writer, picture((n, n, n)), id=f"picture-{n}").status_code)
        if n % 2:
            statuses.append(writer.delete(f"/items/own-{n}").status_code)
        return statuses

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(work, range(12)))
    assert sum(statuses[1] == 201 for statuses in done) == 1
    assert {statuses[1] for statuses in done} == {201, 409}
    assert all(statuses[0] == statuses[3] == 201 and statuses[2] == 200 for statuses in done)
    engine.store.check()
    assert len(engine) == 120 + 12 - 6 + 1 + 12
    assert len(engine.search(text="a red ball", k=1000)) == len(engine)
    assert len(list((engine.path / "media").iterdir())) == 12


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "MPO", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_pictures_of_every_format_are_taken_searched_and_shown(writer, kind):
    from PIL import Image

    from modalhash.serve.media import CONTENT_TYPES, readable_formats

    if kind not in (*readable_formats(), "MPO"):
        pytest.skip(f"this Pillow cannot read {kind}")
    data = picture((20, 120, 40), kind=kind)
    assert writer.post("/search", files={"image": ("a", data)}).status_code == 200
    answer = add_picture(writer, data, id="new")
    assert answer.status_code == 201, answer.text
    assert writer.get("/media/new").headers["content-type"] == CONTENT_TYPES[kind]
    with Image.open(io.BytesIO(writer.get("/media/new?size=64").content)) as small:
        assert small.format == "WEBP"
        assert small.size == (60, 40)


@pytest.mark.parametrize("size", [(1, 70_000), (70_000, 1)])
def test_thin_pictures_are_refused_by_their_header(writer, size):
    data = picture(size=size)
    for answer in (add_picture(writer, data), writer.post("/search", files={"image": ("a.png", data)})):
        assert answer.status_code == 413
        assert "a side may have at most 65,500" in answer.json()["error"]


def test_long_texts_are_cut_except_in_the_answer_about_one_item(client, engine):
    long = "a red ball " * 10_000
    engine.add([{"id": "long", "text": long, "labels": ["red"]}])
    found = client.post("/search", json={"id": "long", "want": "text", "k": 200}).json()
    assert (found["query"]["text"], found["query"]["text_truncated"]) == (long[:2000], True)
    hits = client.post("/search", json={"text": "a red ball", "want": "text", "k": 200}).json()["hits"]
    listed = client.get("/items", params={"modality": "text", "limit": 200}).json()["items"]
    for items in (hits, listed):
        assert {one["id"] for one in items if "text_truncated" in one} == {"long"}
        assert max(len(one["text"]) for one in items) == 2000
    whole = client.get("/items/long").json()
    assert whole["text"] == long
    assert "text_truncated" not in whole
