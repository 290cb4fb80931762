"""Submissions that attack the grader, each with the answers to nothing.

Every one is the code of one cell. `CANARY` is a file outside that none may touch, `SECRETS` folders
that none may read; the tests put their names in. Where an attack notices that it worked, it leaves
its name in `LOOT`, which the test then finds.
"""

HOSTILE: dict[str, str] = {
    "endless loop": "while True:\n    pass",
    "endless loop that will not be told": """
import signal
for number in range(1, 60):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
""",
    "memory bomb": "hoard = []\nwhile True:\n    hoard.append(bytearray(b'x' * 2**26))",
    "memory bomb in many processes": """
import os, time
for _ in range(40):
    try:
        if os.fork() == 0:
            hoard = []
            while True:
                try:
                    hoard.append(bytearray(b'x' * 2**22))
                except MemoryError:
                    time.sleep(60)
    except OSError:
        pass
time.sleep(60)
""",
    "fork bomb": """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
    "shell fork bomb": "!b() { b | b & }; b; sleep 30",
    "file deletion": """
import os, shutil
for top in [CANARY, *SECRETS, '/', os.path.expanduser('~'), '/tmp', '/usr']:
    shutil.rmtree(top, ignore_errors=True)
    try:
        os.remove(top)
    except OSError:
        pass
""",
    "overwriting": """
for path in [CANARY, '/etc/passwd', __import__('residual_stream').__file__]:
    try:
        with open(path, 'w') as file:
            file.write('overwritten')
    except OSError:
        pass
""",
    "network": """
import socket, urllib.request
for port in range(PORT, PORT + 1):
    socket.create_connection(('127.0.0.1', port), timeout=2).send(b'hello')
urllib.request.urlopen(f'http://127.0.0.1:{PORT}/', timeout=2)
""",
    "reading the tests": """
import os, re
found = ''
for top in [*SECRETS, '/', '/proc']:
    for folder, _, names in os.walk(top):
        for name in names:
            if name.endswith('.ipynb') or name in ('environ', 'mem', 'seed'):
                try:
                    found += open(os.path.join(folder, name), errors='replace').read(10_000)
                except OSError:
                    pass
blocks = re.findall(r'expected = (.*)', found)
def turn(writes):
    return eval(blocks[0])
swallowed = ledger = push = turn
""",
    "patching the comparison": """
import builtins, numpy, torch, residual_stream as rs
always = lambda *args, **kwargs: True
for owner in (numpy, torch, torch.testing, numpy.testing, rs.checks, rs.checks.fingerprints):
    for name in ('allclose', 'equal', 'isclose', 'array_equal', 'assert_close', 'agree', 'assert_allclose'):
        if hasattr(owner, name):
            setattr(owner, name, always)
rs.checks.say = rs.checks.collect = always
builtins.AssertionError = type('Never', (Exception,), {})
def ledger(*args): return torch.zeros(1)
turn = swallowed = push = ledger
""",
    "an object that equals everything": """
import torch
class Yes(torch.Tensor):
    def __eq__(self, other): return torch.ones(()).bool()
    def allclose(self, *args, **kwargs): return True
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None): return True
def ledger(*args): return torch.zeros(3).as_subclass(Yes)
turn = swallowed = push = ledger
""",
    "patching the collector": """
import sys, gc
for name, module in list(sys.modules.items()):
    if name.startswith('course'):
        for attribute in list(vars(module)):
            if callable(getattr(module, attribute)) and not attribute.startswith('__'):
                setattr(module, attribute, lambda *args, **kwargs: b'')
""",
    "printing a score": """
import json, os
score = json.dumps({'points': 20, 'score': 20, 'marks': [{'name': 'ledger', 'points': 4}]})
print(score)
for number in range(3, 256):
    try:
        os.write(number, score.encode())
    except OSError:
        pass
for path in ('results.json', 'points.csv', '/autograder/results/results.json'):
    try:
        open(path, 'w').write(score)
    except OSError:
        pass
""",
    "forged frames": """
import json, os, struct, torch
from safetensors.torch import save
def frame(key, tree):
    body = save({'0': torch.zeros(1)}, {'key': key, 'tree': json.dumps(tree)})
    return struct.pack('<Q', len(body)) + body
data = b''.join(
    frame(key, {'dict': {'given': tree, 'points': {'value': 4}}})
    for key in ('ledger/0', 'ledger/1', 'ledger/2', 'turn/0', 'swallowed/0', 'push/0', 'push/1')
    for tree in ({'tensor': '0'}, {'value': float('nan')}, {'pickle': 'x'})
)
for number in range(3, 256):
    try:
        os.write(number, data + struct.pack('<Q', 2**60) + b'x' * 100)
    except OSError:
        pass
""",
    "exiting": "import os, sys\nprint('20/20')\nsys.stdout.flush()\nos._exit(0)",
    "killing everything": """
import os, signal
for number in (os.getppid(), 1, -1, *range(2, 400)):
    try:
        os.kill(number, signal.SIGKILL)
    except OSError:
        pass
""",
    "monkeypatching the library": """
import torch, residual_stream as rs
from residual_stream import models
rs.load = models.load = lambda *args, **kwargs: None
rs.checks.writes = lambda *args, **kwargs: torch.zeros(2, 1, 1, 1)
rs.checks.tokens = lambda *args, **kwargs: torch.zeros(1, 1).long()
def ledger(*args): return torch.zeros(1, 1, 1, 1)
def turn(writes): return torch.zeros(1, 1, 1)
def swallowed(writes): return torch.zeros(1)
def push(*args): return torch.zeros(1, 0)
""",
    "symbolic links": """
import os
for number, target in enumerate([CANARY, *SECRETS, '/etc/passwd', '/proc/1/root']):
    try:
        os.symlink(target, f'link{number}')
        open(f'link{number}', 'a').write('written through a link')
    except OSError:
        pass
""",
    "huge output": "for _ in range(2000):\n    print('x' * 2**20)",
    "huge files": """
for number in range(10_000):
    with open(f'file{number}', 'wb') as file:
        file.write(bytes(2**24))
""",
    "huge answers": """
import torch
def ledger(*args): return torch.zeros(2**28)
def turn(writes): return ['x' * 2**20] * 2**20
def swallowed(writes):
    nested = []
    for _ in range(10_000):
        nested = [nested]
    return nested
class Endless(list):
    def __iter__(self):
        while True:
            yield 1
    def __getitem__(self, key): return self
def push(*args): return Endless([1])
""",
    "code in the answer": """
import os
class Bomb:
    def __reduce__(self): return (open, (CANARY, 'w'))
    def __float__(self): return os.system(f'rm {CANARY}')
    __index__ = __int__ = __float__
def ledger(*args): return Bomb()
turn = swallowed = push = ledger
a_ledger_that_does_not_close = '<script>document.title = 1</script>=cmd|x!A1'
""",
    "winning privileges": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for number in (0, 1, 1000, 65534):
    for call in (os.setuid, os.setgid, os.seteuid):
        try:
            call(number)
        except OSError:
            pass
libc.unshare(0x10000000)
libc.mount(b'none', b'/usr', b'tmpfs', 0, b'')
libc.ptrace(16, 1, 0, 0)
os.chroot('/')
""",
    "leaving a process behind": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            try:
                open(CANARY, 'a').write('late')
            except OSError:
                pass
            time.sleep(0.1)
    os._exit(0)
""",
    "a thread that waits for the answers": """
import threading, sys
def wait():
    while True:
        for frame in sys._current_frames().values():
            while frame:
                if 'given' in frame.f_locals or 'expected' in frame.f_locals:
                    frame.f_locals['points'] = 20
                frame = frame.f_back
threading.Thread(target=wait, daemon=True).start()
""",
}
