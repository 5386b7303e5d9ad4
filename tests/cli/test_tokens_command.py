"""``modalhash tokens``, and the audit log of commands."""

from __future__ import annotations

import pytest

from command_line import run
from little_world import make_world
from modalhash.engine import AuditLog, command_line_user

pytest.importorskip("starlette", reason="starlette is not installed (extra serve)")


def test_tokens_are_made_listed_rotated_and_removed(tmp_path):
    from modalhash.serve.auth import Tokens

    file = tmp_path / "tokens.txt"
    first = run("tokens", "add", file, "alice", "--role", "write", "--days", 30).stdout.strip()
    assert run("tokens", "add", file, "bob").exit_code == 0
    assert Tokens(None, file).find(first).name == "alice"
    listed = [line.split("\t") for line in run("tokens", "list", file).stdout.splitlines()]
    assert [line[:2] for line in listed] == [["alice", "write"], ["bob", "read"]]
    second = run("tokens", "rotate", file, "alice", "--overlap-days", 0).stdout.strip()
    tokens = Tokens(None, file)
    assert (tokens.find(first), tokens.find(second).role.name) == (None, "write")
    assert run("tokens", "remove", file, "alice").exit_code == 0
    assert tokens.find(second) is None, "an open service follows"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "FILE", "bob"), "already has a token"),
        (("add", "FILE", "a b"), "expected at most 64 letters"),
        (("rotate", "FILE", "mallory"), "no valid token"),
        (("remove", "FILE", "mallory"), "no token of 'mallory'"),
        (("list", "nosuch.txt"), "nosuch.txt"),
    ],
)
def test_mistakes_are_one_line(tmp_path, arguments, message):
    file = tmp_path / "tokens.txt"
    run("tokens", "add", file, "bob")
    before = file.read_text()
    done = run("tokens", *(file if argument == "FILE" else argument for argument in arguments))
    assert done.exit_code == 2
    assert message in done.stderr
    assert file.read_text() == before


@pytest.mark.slow
def test_commands_note_who_changed_what(tmp_path):
    make_world(tmp_path)
    engine = tmp_path / "engine"
    assert run("train", tmp_path / "nosuch.csv", "-o", engine).exit_code == 2
    assert not AuditLog.of_engine(engine).path.exists(), "nothing was made"
    assert run("train", tmp_path / "items.csv", "-o", engine, "--bits", 16).exit_code == 0
    (tmp_path / "more.csv").write_text("id,text\nnew,a red ball\n")
    assert run("add", engine, tmp_path / "more.csv").exit_code == 0
    assert run("remove", engine, "new").exit_code == 0
    assert run("remove", engine, "new").exit_code == 2
    assert run("search", engine, "red").exit_code == 0
    assert run("backup", engine, tmp_path / "engine.tar").exit_code == 0
    assert run("restore", tmp_path / "engine.tar", engine, "--overwrite").exit_code == 0
    assert run("verify", engine).exit_code == 0
    assert run("verify", engine, "--repair").exit_code == 0, "the log is nothing that was left over"
    lines = AuditLog.of_engine(engine).tail(100)
    assert [(line["what"], line["state"]) for line in lines] == [
        ("train", "done"), ("add", "begun"), ("add", "done"),
        ("remove", "begun"), ("remove", "done"), ("remove", "begun"), ("remove", "failed"),
        ("restore", "begun"), ("restore", "done"), ("repair", "begun"), ("repair", "done"),
    ]  # fmt: skip
    assert {(line["who"], line["by"]) for line in lines} == {(command_line_user()["who"], "command line")}
    assert lines[0]["items"] == 120
    assert lines[1]["sources"] == [str(tmp_path / "more.csv")]
    assert lines[2]["added"] == 1
    assert (lines[3]["ids"], lines[4]["removed"]) == (["new"], 1)
