from .comparison import (
    SCENARIOS as SCENARIOS,
    ComparisonOptions as ComparisonOptions,
    ComparisonOptionValues as ComparisonOptionValues,
    MethodComparison as MethodComparison,
    SignificanceTest as SignificanceTest,
    compare_methods as compare_methods,
)
from .config import (
    KEYS as KEYS,
    Cell as Cell,
    Grid as Grid,
    Part as Part,
    Point as Point,
    Row as Row,
    Scenario as Scenario,
    Sweep as Sweep,
    cells_of as cells_of,
    check_parameters as check_parameters,
    load_grid as load_grid,
    make_grid as make_grid,
    read_parameters as read_parameters,
    write_parameters as write_parameters,
)
from .measure import RECALL as RECALL
from .measured import MarkedSpread as MarkedSpread, Measured as Measured
from .provenance import Input as Input, code_digest as code_digest, describe_environment as describe_environment
from .results import (
    Results as Results,
    Study as Study,
    curve_figure as curve_figure,
    environments as environments,
    pack as pack,
    quality_tables as quality_tables,
    read_studies as read_studies,
    read_study as read_study,
    seconds_table as seconds_table,
    unpack as unpack,
)
from .run import (
    Estimates as Estimates,
    Event as Event,
    Plan as Plan,
    describe_plan as describe_plan,
    make_plan as make_plan,
    record as record,
    run_cells as run_cells,
)
from .timing import spoken as spoken
from .tuning import Dimension as Dimension, Tuned as Tuned, Tuning as Tuning, search_space as search_space
