from .figures import (
    RECALL_STEP as RECALL_STEP,
    draw_curves as draw_curves,
    method_colours as method_colours,
    plot_convergence as plot_convergence,
    plot_precision_at as plot_precision_at,
    plot_precision_recall as plot_precision_recall,
    render_curves as render_curves,
)
from .measures import (
    Curve as Curve,
    Ranking as Ranking,
    average_precision as average_precision,
    by_radius as by_radius,
    by_rank as by_rank,
    mean_average_precision as mean_average_precision,
    rank as rank,
)
from .protocol import CHOICES as CHOICES, PRESETS as PRESETS, Protocol as Protocol
from .result import Direction as Direction, Result as Result, Table as Table, compare as compare
from .retrieval import (
    EvaluationOptions as EvaluationOptions,
    EvaluationOptionValues as EvaluationOptionValues,
    chance_level as chance_level,
    evaluate as evaluate,
    evaluate_databases as evaluate_databases,
    measure as measure,
    unseen_items as unseen_items,
)
from .significance import (
    PairedTest as PairedTest,
    Spread as Spread,
    bootstrap_interval as bootstrap_interval,
    describe_tests as describe_tests,
    holm as holm,
    paired_tests as paired_tests,
    randomisation_test as randomisation_test,
    randomisation_tests as randomisation_tests,
)
from .trec import (
    RunMeasure as RunMeasure,
    TrecRun as TrecRun,
    compare_runs as compare_runs,
    measure_run as measure_run,
    read_qrels as read_qrels,
    read_run as read_run,
    write_qrels as write_qrels,
    write_run as write_run,
)
