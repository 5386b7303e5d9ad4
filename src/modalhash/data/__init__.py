"""Data sets: read anyone's files, load named ones, draw synthetic twins, break pairs on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.data._errors import ReadError as ReadError
    from modalhash.data._read import guess_mapping as guess_mapping
    from modalhash.data._read import read as read
    from modalhash.data._root import data_root as data_root
    from modalhash.data.catalog import NAMED as NAMED
    from modalhash.data.catalog import NamedDataset as NamedDataset
    from modalhash.data.catalog import convert as convert
    from modalhash.data.catalog import declared as declared
    from modalhash.data.catalog import found_at as found_at
    from modalhash.data.catalog import how_to_get as how_to_get
    from modalhash.data.catalog import is_named as is_named
    from modalhash.data.catalog import is_present as is_present
    from modalhash.data.catalog import load_dataset as load_dataset
    from modalhash.data.catalog import lookup as lookup
    from modalhash.data.dataset import KINDS as KINDS
    from modalhash.data.dataset import Dataset as Dataset
    from modalhash.data.dataset import Split as Split
    from modalhash.data.dataset import SplitData as SplitData
    from modalhash.data.dataset import with_split as with_split
    from modalhash.data.feature_tables import column_kinds as column_kinds
    from modalhash.data.feature_tables import has_columns as has_columns
    from modalhash.data.feature_tables import holds_features as holds_features
    from modalhash.data.formats.manifest import is_manifest as is_manifest
    from modalhash.data.formats.manifest import manifest_columns as manifest_columns
    from modalhash.data.formats.manifest import manifest_lines as manifest_lines
    from modalhash.data.formats.manifest import table_format as table_format
    from modalhash.data.formats.manifest import usual_fields as usual_fields
    from modalhash.data.formats.table_format import TableFormat as TableFormat
    from modalhash.data.labels import label_matrix as label_matrix
    from modalhash.data.labels import label_names as label_names
    from modalhash.data.labels import parse_labels as parse_labels
    from modalhash.data.limits import ReadLimits as ReadLimits
    from modalhash.data.scenarios import missing_labels as missing_labels
    from modalhash.data.scenarios import noisy_labels as noisy_labels
    from modalhash.data.scenarios import paired as paired
    from modalhash.data.scenarios import semi_paired as semi_paired
    from modalhash.data.scenarios import unequal as unequal
    from modalhash.data.scenarios import unpaired as unpaired
    from modalhash.data.sets.openmoji import openmoji_attribution as openmoji_attribution
    from modalhash.data.sets.openmoji import write_openmoji as write_openmoji
    from modalhash.data.shards import open_feature_files as open_feature_files
    from modalhash.data.synthetic import RECIPES as RECIPES
    from modalhash.data.synthetic import generate as generate
    from modalhash.data.synthetic import twin as twin
    from modalhash.data.write import npz_path as npz_path
    from modalhash.data.write import write_npz as write_npz

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "_errors": ["ReadError"],
        "_read": ["guess_mapping", "read"],
        "_root": ["data_root"],
        "catalog": [
            "NAMED",
            "NamedDataset",
            "convert",
            "declared",
            "found_at",
            "how_to_get",
            "is_named",
            "is_present",
            "load_dataset",
            "lookup",
        ],
        "dataset": ["KINDS", "Dataset", "SplitData", "Split", "with_split"],
        "formats.manifest": ["is_manifest", "manifest_columns", "manifest_lines", "table_format", "usual_fields"],
        "formats.table_format": ["TableFormat"],
        "labels": ["label_matrix", "label_names", "parse_labels"],
        "limits": ["ReadLimits"],
        "scenarios": ["missing_labels", "noisy_labels", "paired", "semi_paired", "unequal", "unpaired"],
        "sets.openmoji": ["openmoji_attribution", "write_openmoji"],
        "shards": ["open_feature_files"],
        "synthetic": ["RECIPES", "generate", "twin"],
        "feature_tables": ["column_kinds", "has_columns", "holds_features"],
        "write": ["npz_path", "write_npz"],
    },
)
