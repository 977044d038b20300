# SPDX-License-Identifier: BSD-3-Clause
"""Structs that begin with their `size`, and enumerations, may grow at their end, and change in no other way.
Usage: abi_members.py OLD.abi NEW.abi

Both are descriptions by abidw. Names each member of an old struct that is not in the new one at the same place, with the
same name and type, and each enumerator that is gone or has another value; exits 1 then. (abidiff 2.2 lets such changes
pass once additions at the end are allowed.)"""
import sys
import xml.etree.ElementTree


class Description:
    def __init__(self, path):
        tree = xml.etree.ElementTree.parse(path)
        self.types = {e.get("id"): e for e in tree.iter() if e.get("id")}
        self.structs = {e.get("name"): e for e in tree.iter("class-decl") if e.get("is-declaration-only") != "yes"}

        self.enums = {e.get("name"): {v.get("name"): v.get("value") for v in e.iter("enumerator")}
                      for e in tree.iter("enum-decl")}

    def type_text(self, key):
        """A type in words, down to the first name."""
        element = self.types.get(key)
        if element is None:
            return key
        inner = [self.type_text(e.get("type-id")) for e in (element, *element) if e.get("type-id")]
        if element.tag == "pointer-type-def":
            return f"{inner[0]} *"
        if element.tag == "qualified-type-def":
            return f"{' '.join(q for q in ('const', 'volatile') if element.get(q) == 'yes')} {inner[0]}"
        if element.tag == "array-type-def":
            return f"{inner[0]} [{element.get('size-in-bits')} bits]"
        if element.tag == "function-type":
            return f"function ({', '.join(inner)})"
        return element.get("name")

    def members(self, struct):
        for member in self.structs[struct].iter("data-member"):
            variable = member.find("var-decl")
            yield int(member.get("layout-offset-in-bits")), variable.get("name"), \
                self.type_text(variable.get("type-id"))


def main():
    old, new = Description(sys.argv[1]), Description(sys.argv[2])
    changed = 0
    for struct in sorted(set(old.structs) & set(new.structs)):  # abidiff tells of structs that came and went
        before, after = list(old.members(struct)), list(new.members(struct))
        if not before or before[0][:2] != (0, "size"):
            continue
        for number, (offset, name, type_text) in enumerate(before):
            if after[number:number + 1] != [(offset, name, type_text)]:
                print(f"struct {struct}: {type_text} {name} at byte {offset // 8} changed or is gone")
                changed = 1
                break
        last = before[-1][0]
        if any(offset <= last for offset, _, _ in after[len(before):]):
            print(f"struct {struct}: a member was added before the end")
            changed = 1
    for name, values in old.enums.items():
        for enumerator, value in values.items():
            if name in new.enums and new.enums[name].get(enumerator) != value:
                print(f"enum {name}: {enumerator} is not {value} any more, or is gone")
                changed = 1
    return changed


if __name__ == "__main__":
    sys.exit(main())
