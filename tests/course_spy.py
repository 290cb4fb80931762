"""The code of a submission that looks everywhere it can reach for something it was not given."""

from __future__ import annotations

#: One cell. `HIDDEN` maps names to what is looked for, every byte turned round, so that the cell
#: does not find itself. It searches its own memory, open files, other processes and the file tree,
#: and hands over what it found as a frame of its own under the key `spied`.
SPY = r"""
import ctypes, gc, mmap, os, sys

HERE = {}  # what is looked for, by name: a part of a page that is left out of the search
page, buffer = mmap.mmap(-1, 2**16), mmap.mmap(-1, 2**24)
at = 0
for name, turned in HIDDEN.items():
    for i, byte in enumerate(turned):
        page[at + i] = 255 - byte
    HERE[name] = memoryview(page)[at : at + len(turned)]
    at += len(turned)
LONGEST = max(map(len, HERE.values()))
OWN = [ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in (page, buffer)]


def search(file, start, length, found, where):
    # found[name] gets `where`; the end of one piece is read again with the next
    while length > 0:
        try:
            file.seek(start)
            size = file.readinto(memoryview(buffer)[: min(length, len(buffer))]) or 0
        except (OSError, ValueError, OverflowError):
            return
        for name, part in HERE.items():
            if buffer.find(part, 0, size) >= 0:
                found.setdefault(name, []).append(where)
        if size < len(buffer):
            return
        start, length = start + size - LONGEST, length - size + LONGEST


def own_memory(found):
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # /proc/self/mem is the owner's again
    searched = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps.read().splitlines():
            span, rights, *_ = line.split()
            first, last = (int(x, 16) for x in span.split("-"))
            if rights.startswith("rw") and not any(first <= own < last for own in OWN):
                search(memory, first, last - first, found, "memory")
                searched += last - first
    return searched


def open_files(found):
    for number in range(256):
        try:
            copy = os.fdopen(os.dup(number), "rb", 0)
        except OSError:
            continue
        if not copy.isatty():
            search(copy, 0, 2**26, found, f"open file {number}")


def other_processes(found):
    reached = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        if int(process) == os.getpid():
            continue
        for name in ("environ", "mem", "maps", "fd", "cwd/.", "root/tmp"):
            path = f"/proc/{process}/{name}"
            try:
                if os.path.isdir(path):
                    os.listdir(path)
                else:
                    file = open(path, "rb", 0)
                    search(file, 0, 2**20, found, path)
                reached.append(path)
            except OSError:
                pass
        local = ctypes.create_string_buffer(8)
        vector = (ctypes.c_void_p * 2)(ctypes.addressof(local), 8)
        if ctypes.CDLL(None).process_vm_readv(int(process), vector, 1, vector, 1, 0) > 0:
            reached.append(process)
    return reached


def files(found):
    # everything but programs and what the kernel makes up
    programs = (sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin")
    looked = 0
    tops = ["/", "/tmp", "/home", os.path.expanduser("~"), "/etc", LIBRARY, *FOLDERS]
    for top in tops:
        for folder, names, inside in os.walk(top):
            names[:] = [
                n for n in names
                if not os.path.join(folder, n).startswith((*programs, "/proc", "/sys", "/dev"))
            ]
            for name in inside:
                try:
                    with open(os.path.join(folder, name), "rb", 0) as file:
                        search(file, 0, 2**22, found, os.path.join(folder, name))
                        looked += 1
                except OSError:
                    pass
    return looked


def variables(found):
    words = [repr(sys.argv), repr(dict(os.environ))]
    for frame in sys._current_frames().values():
        while frame:
            words.append(repr(list(frame.f_locals)))
            frame = frame.f_back
    return [word for word in ("expected", "compare") if any(f"'{word}'" in w for w in words)]


def look():
    from course.plain import frame

    found = {}
    variables_found = variables(found)
    report = {
        "memory": own_memory(found), "reached": other_processes(found), "files": files(found),
        "variables": variables_found,
    }
    open_files(found)
    report["found"] = {name: found.get(name, []) for name in HERE}
    data = frame("spied", report)
    for number in range(3, 256):
        try:
            os.write(number, data)
        except OSError:
            pass
"""
