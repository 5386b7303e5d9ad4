"""AMSH: Adaptive Marginalized Semantic Hashing (Luo et al., IEEE TMM 2023).

``estimator`` has the class, whose ``_fit`` is Algorithm 1 of the paper; ``codes`` has the updates of step 1, ``start``
the rows it begins with, ``functions`` the updates of step 2, ``kernel_features`` the features they are learned from.
"""

from modalhash.methods.amsh.estimator import AMSH as AMSH
