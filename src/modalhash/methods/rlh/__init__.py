"""RLH: Relevance-Likelihood Hashing, a method of this project.

``estimator`` has the class and the order of the steps, ``label_space`` the labels as vectors, ``posteriors`` what
features know of them, ``codes`` step 1, ``own_codes`` step 3. Step 2 is that of AMSH.
"""

from modalhash.methods.rlh.estimator import RLH as RLH
