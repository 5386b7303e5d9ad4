from .engine import Engine as Engine
from .items.item import (
    Item as Item,
    Problem as Problem,
    ProblemCode as ProblemCode,
    group_problems as group_problems,
)
from .items.lines import default_id as default_id
from .items.photos import PictureTextReader as PictureTextReader
from .report import report_page as report_page
from .search.confidence import Confidence as Confidence
from .search.hits import Hit as Hit
from .search.near_duplicates import (
    DUPLICATE_RADIUS as DUPLICATE_RADIUS,
    DUPLICATE_THRESHOLD as DUPLICATE_THRESHOLD,
    DuplicateGroup as DuplicateGroup,
)
from .search.ordering import refresh as refresh
from .search.query import Query as Query, UnknownLabelError as UnknownLabelError
from .search.reliability import (
    Bin as Bin,
    calibration_error as calibration_error,
    pooled as pooled,
    reliability_bins as reliability_bins,
    reliability_svg as reliability_svg,
)
from .settings import (
    AddOptions as AddOptions,
    AddOptionValues as AddOptionValues,
    EncodeOptions as EncodeOptions,
    EncodeOptionValues as EncodeOptionValues,
    OpenOptions as OpenOptions,
    OpenOptionValues as OpenOptionValues,
    OptionValues as OptionValues,
    ReadOptionValues as ReadOptionValues,
    ReadSettings as ReadSettings,
    RetrainOptionValues as RetrainOptionValues,
    RetrainOverrides as RetrainOverrides,
    SearchOptions as SearchOptions,
    TrainOptionValues as TrainOptionValues,
    TrainSettings as TrainSettings,
)
from .storage.audit import AuditLog as AuditLog, command_line_user as command_line_user, ids_summary as ids_summary
from .storage.backup import (
    Finding as Finding,
    backup_engine as backup_engine,
    restore_engine as restore_engine,
    verify_engine as verify_engine,
)
from .storage.encode_to import EncodedSource as EncodedSource, EncodeError as EncodeError
from .storage.folder import EngineError as EngineError, EngineReplacedError as EngineReplacedError
from .storage.folder_sync import (
    EmptyFolderError as EmptyFolderError,
    FolderSync as FolderSync,
    Synced as Synced,
    SyncPlan as SyncPlan,
)
from .storage.ingest import Added as Added
from .storage.location import audit_log as audit_log, clone_engine as clone_engine
from .storage.opening import engine_info as engine_info
from .storage.relabel import Relabelled as Relabelled
from .training.check import (
    EncoderPlan as EncoderPlan,
    ModalityCheck as ModalityCheck,
    Remark as Remark,
    SourceCheck as SourceCheck,
    SourceFile as SourceFile,
    TrainingPlan as TrainingPlan,
    check_sources as check_sources,
)
from .training.corpus import (
    LabelCheck as LabelCheck,
    NoSharedLabelError as NoSharedLabelError,
    describe_label_overlap as describe_label_overlap,
)
from .training.expected_quality import describe_expected as describe_expected
from .training.train import TrainedEngine as TrainedEngine, train_engine as train_engine
