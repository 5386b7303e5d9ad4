"""AMSH: Adaptive Marginalized Semantic Hashing (Luo et al., IEEE TMM 2023).

``estimator`` has the class, whose ``_fit`` is Algorithm 1 of the paper, ``codes`` the rows and updates of step 1,
``functions`` the updates of step 2.
"""

from modalhash.methods.amsh.estimator import AMSH as AMSH
