from .catalog import (
    NAMED as NAMED,
    NamedDataset as NamedDataset,
    convert as convert,
    data_root as data_root,
    declared as declared,
    found_at as found_at,
    how_to_get as how_to_get,
    is_named as is_named,
    is_present as is_present,
    load_dataset as load_dataset,
    lookup as lookup,
)
from .dataset import (
    KINDS as KINDS,
    Dataset as Dataset,
    Split as Split,
    SplitData as SplitData,
    label_matrix as label_matrix,
    label_names as label_names,
    parse_labels as parse_labels,
    with_split as with_split,
)
from .feature_tables import (
    column_kinds as column_kinds,
    has_columns as has_columns,
    holds_features as holds_features,
    open_feature_files as open_feature_files,
)
from .formats.manifest import (
    is_manifest as is_manifest,
    manifest_columns as manifest_columns,
    manifest_lines as manifest_lines,
    table_format as table_format,
    usual_fields as usual_fields,
)
from .formats.npz import npz_path as npz_path, write_npz as write_npz
from .formats.sandbox import ReadLimits as ReadLimits
from .formats.tables import TableFormat as TableFormat
from .formats.variables import ReadError as ReadError
from .reading import guess_mapping as guess_mapping, read as read
from .scenarios import (
    missing_labels as missing_labels,
    noisy_labels as noisy_labels,
    paired as paired,
    semi_paired as semi_paired,
    unequal as unequal,
    unpaired as unpaired,
)
from .sets.openmoji import openmoji_attribution as openmoji_attribution, write_openmoji as write_openmoji
from .synthetic import RECIPES as RECIPES, generate as generate, twin as twin
