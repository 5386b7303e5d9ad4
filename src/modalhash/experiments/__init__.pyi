from .cells import Cell as Cell, Point as Point, cells_of as cells_of
from .comparison import (
    SCENARIOS as SCENARIOS,
    MarkedSpread as MarkedSpread,
    MethodComparison as MethodComparison,
    Run as Run,
    SignificanceTest as SignificanceTest,
    compare_methods as compare_methods,
)
from .config import (
    KEYS as KEYS,
    Grid as Grid,
    Part as Part,
    Row as Row,
    Scenario as Scenario,
    Sweep as Sweep,
    check_parameters as check_parameters,
    load_grid as load_grid,
    make_grid as make_grid,
    read_parameters as read_parameters,
    write_parameters as write_parameters,
)
from .grid_inputs import Input as Input
from .grid_report import (
    curve_figure as curve_figure,
    environments as environments,
    quality_tables as quality_tables,
    seconds_table as seconds_table,
)
from .measure import RECALL as RECALL
from .provenance import code_digest as code_digest, describe_environment as describe_environment
from .results import (
    Results as Results,
    Study as Study,
    pack as pack,
    read_studies as read_studies,
    read_study as read_study,
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
