from .app import make_app as make_app
from .auth import (
    Token as Token,
    make_token as make_token,
    read_tokens as read_tokens,
    rotate as rotate,
    write_tokens as write_tokens,
)
from .limits import Limits as Limits, Settings as Settings
from .server import bind as bind, check_exposure as check_exposure, page_url as page_url, run as run
from .workers import run_workers as run_workers
