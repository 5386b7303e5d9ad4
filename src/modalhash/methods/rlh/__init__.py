"""RLH: Relevance-Likelihood Hashing, a method of this project.

``estimator`` has the class and the order of the steps, ``posteriors`` the label space and the regressions from features
to it, ``codes`` steps 1 and 3. Step 2 is that of AMSH.
"""

from modalhash.methods.rlh.estimator import RLH as RLH
