"""The AMSH paper, reproduced on top of :mod:`modalhash.experiments`. Part of the repository, not of the package.

``experiments/*.toml`` hold settings and published numbers, ``published`` reads them, ``paper_data`` knows which data
are the paper's. From there on nothing is fitted: ``study`` gathers results, ``verdicts`` tests differences, ``claims``,
``tables`` and ``figures`` say what they hold, ``report`` puts them in order, ``document`` writes Markdown.
``compare`` compares the numbers of two reports.
"""
