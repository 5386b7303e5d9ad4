"""``modalhash train``: from a manifest to an engine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from modalhash.cli._common import (
    EXIT_INCOMPLETE,
    AsJson,
    Encoding,
    Exif,
    Field,
    Quiet,
    ReadMemory,
    ReadSeconds,
    ReadText,
    Separator,
    Sheet,
    Store,
    StoreVariable,
    Strict,
    Workers,
    audited,
    bits_or_auto,
    describe_codes,
    describe_labels,
    describe_named_labels,
    describe_overlap,
    import_from_here,
    key_values,
    print_json,
    printable,
    problems_as_json,
    progress_bars,
    say,
    show_problems,
    table_format,
)
from modalhash.cli._method_options import Params, parameters_of_one
from modalhash.cli._training_options import (
    Bits,
    Download,
    EncoderNames,
    Labels,
    LabelsFrom,
    LearnFrom,
    LearnFromItems,
    Method,
    Param,
    QualityOfEncoders,
    Sources,
)


class CodesChoice(StrEnum):
    """Which codes the training items get."""

    learned = "learned"
    hashed = "hashed"


def train(
    manifest: Sources,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="ENGINE", help="Folder to be made.")],
    bits: Bits = "auto",
    method: Method = None,
    param: Param = None,
    params: Params = None,
    encoder: EncoderNames = None,
    quality: QualityOfEncoders = None,
    download: Download = False,
    field: Field = None,
    encoding: Encoding = None,
    separator: Separator = None,
    sheet: Sheet = None,
    labels: LabelsFrom = Labels.given,
    codes: Annotated[
        CodesChoice, typer.Option(help="Codes of the training items: made from their labels, or from features alone.")
    ] = CodesChoice.learned,
    learn_from: LearnFromItems = LearnFrom.training,
    store: Store = None,
    store_variable: StoreVariable = None,
    exif: Exif = True,
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an engine that is there.")] = False,
    read_text: ReadText = False,
    strict: Strict = False,
    workers: Workers = None,
    read_memory: ReadMemory = None,
    read_seconds: ReadSeconds = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn codes from pictures and texts, and make an engine that finds them.

    A line of the manifest is one item: [b]path[/b] (of a picture, relative to
    the manifest) or [b]text[/b], its [b]labels[/b] (separated by ; in a table),
    and perhaps [b]id[/b], [b]modality[/b] and [b]split[/b]. Pictures and texts
    need not belong together. Lines without labels are not learned from; they
    are found all the same. Of a folder of pictures, or a zip or tar of such, the
    names of its subfolders are the labels, but for those that say nothing, such as
    2019 or DCIM. Rows of a table that name pictures of such a folder, by path or
    file name, say more about these.

    Nothing is labelled? Then it learns from features: photos find photos, texts
    find texts and, with encoders that put both into one space (those of the extra
    photos, or CLIP), words find photos. Only the photos are labelled?
    [b]--labels names[/b] gives a text without labels those whose names it contains,
    to learn from. [b]--labels none[/b] ignores labels.

    Exit code: 0; 1 if items were left out, each with its line and the reason;
    2 if no engine was made.

    [bold]Examples[/bold]

    modalhash train photos/ -o engine

    modalhash train photos/ texts.csv -o engine

    modalhash train photos/ labels.csv -o engine

    modalhash train items.jsonl -o engine --bits 32 --field image=file --field text=caption --field labels=keywords

    modalhash train items.csv -o engine --method mymodule:Mine --param ridge=0.1

    modalhash train items.csv -o engine --params items-rlh.toml

    modalhash train photos/ texts.csv -o engine --quality fast

    modalhash train photos/ texts.csv -o engine --encoder image=hf:models/clip --encoder text=hf:models/clip

    modalhash train items.csv -o engine

    modalhash train photos/ texts.csv -o engine --read-text

    modalhash train photos/ captions.csv -o engine --labels names

    modalhash train photos-by-year/ -o engine --labels folders

    modalhash train openmoji -o emoji

    modalhash train photos/ texts.xlsx -o engine --sheet Texts

    modalhash train photos/ old.csv -o engine --encoding cp1251 --separator ';'

    modalhash train items.csv -o engine --encoder text=text+use

    MODALHASH_DATABASE_URL=postgresql://… modalhash train items.csv -o engine --store postgresql
    """
    from modalhash.encoders import describe_quality, names_module
    from modalhash.engine import Engine
    from modalhash.progress import Reporter

    encoders = key_values(encoder, "--encoder")
    if ":" in (method or "") or any(names_module(name) for name in encoders.values()):
        import_from_here()
    if quality is not None:
        for line in describe_quality(quality.value):
            named = line.partition(":")[0] in encoders
            say(f"{line.partition(':')[0]}: as --encoder says" if named else line)
    method, parameters = parameters_of_one(method, param, params)
    details = {"sources": manifest, "method": method, "labels": labels.value, "bits": bits, "seed": seed}
    with progress_bars() as callback, audited("train", output, **details) as noted:
        engine = Engine.train(
            manifest,
            output,
            n_bits=bits_or_auto(bits),
            method=method,
            parameters=parameters,
            random_state=seed,
            encoders=encoders,
            fields=key_values(field, "--field"),
            table=table_format(encoding, separator, sheet),
            labels=labels.value,
            codes=codes.value,
            learn_from=learn_from.value,
            store=store,
            store_variable=store_variable,
            quality=None if quality is None else quality.value,
            download=download,
            read_text=read_text,
            exif=exif,
            strict=strict,
            workers=workers,
            overwrite=overwrite,
            callback=callback,
            on_problem=lambda problem: None,  # shown at the end, below the bars
        )
        noted["items"] = len(engine)
        report = Reporter(callback)
        report("prepare searches", 0, 1)
        engine.warm_up()  # what is compiled at the first use is compiled here, where one waits, and not in a search
        report("prepare searches", 1, 1)
    problems = engine.problems
    with engine:
        facts = engine.info()
    show_problems(problems, manifest)
    if as_json:
        print_json({**facts, "problems": problems_as_json(problems)})
    else:
        _say_done(output, facts)
    if problems:
        raise typer.Exit(EXIT_INCOMPLETE)


def _say_done(output: Path, facts: dict[str, Any]) -> None:
    from modalhash.engine import describe_expected

    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in facts["seconds"].items())
    sizes = ", ".join(f"{sum(one['items'].values()):,} {name}" for name, one in facts["modalities"].items())
    say(f"{output}: {sizes}; {describe_labels(facts)} ({seconds})")
    for line in (*map(printable, facts["notes"]), *describe_named_labels(facts), *describe_overlap(facts)):
        say(line)
    say(describe_codes(facts))
    say(describe_expected(facts["expected"], codes=facts["codes"]))
    if facts["store"]["kind"] == "postgresql":
        place = facts["store"]
        say(f"Its items are in the schema {place['schema']}; whoever opens it needs the URL in {place['variable']}")
    others = [name for name in facts["modalities"] if name != "text"]
    query = '"some words"' if "text" in facts["reads"] else "--image photo.jpg"
    say(f"Search it: modalhash search {output} {query} --want {(others or ['text'])[0]}")
    if facts["labels"] == "none":
        told = "" if facts["why_no_confidence"] is None else "Without labels hits have no confidence. "
        say(f"{told}Near-duplicates: modalhash duplicates {output}")
