"""The paper, reproduced: experiments as files, a runner that resumes, a report that is a function of the results.

``config`` reads ``experiments/*.toml``, ``sources`` finds the data, ``cells`` lists what has to be measured,
``measure`` measures one cell, ``runner`` and ``workers`` measure many, ``store`` keeps them as JSON. From there on
nothing is fitted: ``gather`` reads the store, ``tables``, ``figures`` and ``claims`` say what it holds, ``report``
puts them in order, ``page`` and ``markdown`` write them down.
"""
