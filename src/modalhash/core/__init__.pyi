from .archives import ArchiveMember as ArchiveMember
from .codes import pack_signs as pack_signs, unpack_signs as unpack_signs
from .features import AnchorKernel as AnchorKernel, Linear as Linear
from .progress import Progress as Progress
