"""families.yml, read without a YAML library, as ci/tables and tests need it: keys, routers and families stand a line each."""
import dataclasses
import pathlib
import re

PATH = pathlib.Path(__file__).with_name("families.yml")


@dataclasses.dataclass
class Rule:
    """Of a key: "must base_emb_dim", "=silu|swish", "-- a note"."""
    text: str

    def __post_init__(self):
        text, _, self.note = self.text.strip('" ').partition("--")
        words = text.split()
        self.required = words[:1] in (["must"], ["stands"])
        self.only = next((word[1:].split("|") for word in words if word.startswith("=")), [])
        self.to = [word for word in words[self.required:] if not word.startswith("=")]
        self.note = self.note.strip()


@dataclasses.dataclass
class Family:
    name: str
    router: str
    sets: list
    own: dict  # of its own: key to rule
    rules: dict  # all: key to rule
    either: list
    undivided: str
    decoder_block: str
    because: str

    @property
    def is_router_alone(self):
        return self.decoder_block.startswith("router_")

    @property
    def is_moe_alone(self):
        return self.decoder_block.startswith("moe_")


def sections():
    found, section = {}, None
    for line in PATH.read_text().splitlines():
        if re.match(r"\w+:$", line):
            section = found.setdefault(line[:-1], [])
        elif line.startswith("  ") and not line.lstrip().startswith("#"):
            section.append(line[2:])
    return found


def pairs(text):
    """Of "a: b, c: d", where no value has a comma."""
    return dict(re.findall(r'([\w-]+): ("[^"]*"|[^,]*)(?:, |$)', text))


def inside(text, name, brackets):
    match = re.search(rf"\b{name}: \{brackets[0]}(.*?)\{brackets[1]}(?:[,}}]|$)", text)
    return match[1] if match else ""


def sets():
    found = {}
    for line in sections()["sets"]:
        if line.startswith("  "):
            key, _, rule = line.strip().partition(": ")
            found[name][key] = Rule(rule)
        else:
            name = line[:-1]
            found[name] = {}
    return found


def read():
    all_sets, parts = sets(), sections()
    routers = dict(re.match(r"(\w+): \{(.*)\}", line).groups() for line in parts["routers"])
    undivided = dict(line.split(": ") for line in parts["undivided"])
    for line in parts["families"]:
        name, text = re.match(r"([\w-]+): \{(.*)\}$", line).groups()
        names = inside(text, "sets", "[]").split(", ")
        own = {key: Rule(rule) for key, rule in pairs(inside(text, "keys", "{}")).items()}
        router = next(iter(re.findall(r"\brouter: (\w+)", text)), "")
        rules = {key: rule for one in reversed(names) for key, rule in all_sets[one].items()} | own
        block = re.search(r"decoder_block: (\w+)", text) or re.search(r"decoder_block: (\w+)", routers[router])
        because = re.search(r"because: (.*?), (?:is|keys): ", text)
        yield Family(name, router, names, own, rules, inside(text, "either", "[]").split(", ") if "either: [" in text else [],
                     undivided.get(router, ""), block[1], because[1] if because else "")


def refused():
    return dict(line.split(": ", 1) for line in sections()["refused"])
