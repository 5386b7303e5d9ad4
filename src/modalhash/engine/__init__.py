"""A search engine in a folder: encoders, a model, a store of items and an index of their codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash._archives import ArchiveMember as ArchiveMember
    from modalhash.data import parse_labels as parse_labels
    from modalhash.engine._filter_check import UnknownLabelError as UnknownLabelError
    from modalhash.engine.answer import Hit as Hit
    from modalhash.engine.archive import backup_engine as backup_engine
    from modalhash.engine.archive import restore_engine as restore_engine
    from modalhash.engine.checkup import Finding as Finding
    from modalhash.engine.checkup import verify_engine as verify_engine
    from modalhash.engine.confidence import Confidence as Confidence
    from modalhash.engine.encode_run import EncodedSource as EncodedSource
    from modalhash.engine.encode_run import EncodeError as EncodeError
    from modalhash.engine.engine import Engine as Engine
    from modalhash.engine.engine import refresh as refresh
    from modalhash.engine.expected import describe_expected as describe_expected
    from modalhash.engine.folder import EngineError as EngineError
    from modalhash.engine.folder import EngineReplacedError as EngineReplacedError
    from modalhash.engine.folder_sync import EmptyFolderError as EmptyFolderError
    from modalhash.engine.folder_sync import FolderSync as FolderSync
    from modalhash.engine.folder_sync import Synced as Synced
    from modalhash.engine.folder_sync import SyncPlan as SyncPlan
    from modalhash.engine.ingest import Added as Added
    from modalhash.engine.label_check import LabelCheck as LabelCheck
    from modalhash.engine.label_check import NoSharedLabelError as NoSharedLabelError
    from modalhash.engine.label_check import describe_label_overlap as describe_label_overlap
    from modalhash.engine.near_duplicates import DUPLICATE_RADIUS as DUPLICATE_RADIUS
    from modalhash.engine.near_duplicates import DUPLICATE_THRESHOLD as DUPLICATE_THRESHOLD
    from modalhash.engine.near_duplicates import DuplicateGroup as DuplicateGroup
    from modalhash.engine.picture_text import PictureTextReader as PictureTextReader
    from modalhash.engine.query import OptionValues as OptionValues
    from modalhash.engine.query import QueryBatch as QueryBatch
    from modalhash.engine.query import SearchOptions as SearchOptions
    from modalhash.engine.query import SearchRequest as SearchRequest
    from modalhash.engine.relabelling import Relabelled as Relabelled
    from modalhash.engine.reliability import Bin as Bin
    from modalhash.engine.reliability import calibration_error as calibration_error
    from modalhash.engine.reliability import pooled as pooled
    from modalhash.engine.reliability import reliability_bins as reliability_bins
    from modalhash.engine.reliability import reliability_svg as reliability_svg
    from modalhash.engine.report import report_page as report_page
    from modalhash.engine.source_check import EncoderPlan as EncoderPlan
    from modalhash.engine.source_check import ModalityCheck as ModalityCheck
    from modalhash.engine.source_check import Remark as Remark
    from modalhash.engine.source_check import SourceCheck as SourceCheck
    from modalhash.engine.source_check import SourceFile as SourceFile
    from modalhash.engine.source_check import TrainingPlan as TrainingPlan
    from modalhash.engine.source_check import check_sources as check_sources
    from modalhash.engine.source_items import Item as Item
    from modalhash.engine.source_items import Problem as Problem
    from modalhash.engine.source_items import ProblemCode as ProblemCode
    from modalhash.engine.source_items import group_problems as group_problems
    from modalhash.engine.source_lines import default_id as default_id
    from modalhash.engine.splitting import split_engine as split_engine
    from modalhash.store import Filter as Filter
    from modalhash.store import FilterError as FilterError

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "answer": ["Hit"],
        "archive": ["backup_engine", "restore_engine"],
        "checkup": ["Finding", "verify_engine"],
        "confidence": ["Confidence"],
        "encode_run": ["EncodeError", "EncodedSource"],
        "engine": ["Engine", "refresh"],
        "expected": ["describe_expected"],
        "folder": ["EngineError", "EngineReplacedError"],
        "folder_sync": ["EmptyFolderError", "FolderSync", "SyncPlan", "Synced"],
        "ingest": ["Added"],
        "label_check": ["LabelCheck", "NoSharedLabelError", "describe_label_overlap"],
        "near_duplicates": ["DUPLICATE_RADIUS", "DUPLICATE_THRESHOLD", "DuplicateGroup"],
        "picture_text": ["PictureTextReader"],
        "query": ["Filter", "OptionValues", "QueryBatch", "SearchOptions", "SearchRequest"],
        "_filter_check": ["FilterError", "UnknownLabelError"],
        "relabelling": ["Relabelled"],
        "reliability": ["Bin", "calibration_error", "pooled", "reliability_bins", "reliability_svg"],
        "report": ["report_page"],
        "source_check": [
            "EncoderPlan",
            "ModalityCheck",
            "Remark",
            "SourceCheck",
            "SourceFile",
            "TrainingPlan",
            "check_sources",
        ],
        "source_items": ["ArchiveMember", "Item", "Problem", "ProblemCode", "group_problems"],
        "source_lines": ["default_id", "parse_labels"],
        "splitting": ["split_engine"],
    },
)
