//! The borders inside crates: no circle of more than two files, and no field of a part of the engine that another file may write. Not counted:
//! structs that are plain values, handed in or out and without an invariant, which `xtask/borders` lists.
//!
//! A file points to another if it names it, or something defined there, by a path or a `use`; a name that comes through a re-export
//! leads to where it is defined. Not counted: a child that uses its own parent's items, `mod` declarations, a parent's `pub use` of what
//! its children define, whatever is under `#[cfg(test)]`, and calls of methods, which name no file.

use crate::source::{Item, Open, Source, list, read, sources};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use xtask::workspace::root;

/// Where the values are listed.
const VALUES: &str = "xtask/borders";
/// The crate whose parts own their fields.
const PARTS: &str = "crates/rerail-core/src";
/// Two files may be one thing in two rooms; more are a circle.
const FILES_MAX: usize = 2;

/// Looks at every crate.
pub fn run() -> Result<()> {
    let text =
        std::fs::read_to_string(root().join(VALUES)).with_context(|| format!("could not read {VALUES}"))?;
    let values: BTreeSet<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let mut wrong = Vec::new();
    let mut crates: Vec<PathBuf> = list(&root().join("crates"))?;
    crates.push(root().join("xtask"));
    for start in
        crates.iter().flat_map(|directory| ["src/lib.rs", "src/main.rs"].map(|start| directory.join(start)))
    {
        let circles = circles_of(&start, &|path| std::fs::read_to_string(path).ok());
        let at = start.strip_prefix(root()).unwrap_or(&start).display();
        wrong.extend(circles.iter().map(|files| format!("{at}: a circle of files: {}", files.join(" "))));
    }
    wrong.extend(open_fields(&sources(&root().join(PARTS))?, &values)?);
    if wrong.is_empty() { Ok(()) } else { bail!("crossed:\n  {}", wrong.join("\n  ")) }
}

/// Fields with any visibility, in structs with named fields that are not among `values`; and values that are none. A field that holds a part,
/// whose own fields are all private, is a door to that part: it counts only if another file puts a new one into its place.
fn open_fields(files: &[(String, String)], values: &BTreeSet<&str>) -> Result<Vec<String>> {
    let read = |(path, text): &(String, String)| Ok((path.clone(), read(text).context(path.clone())?));
    let files: Vec<(String, Source)> = files.iter().map(read).collect::<Result<_>>()?;
    let structs: Vec<_> = files.iter().flat_map(|(_, source)| &source.open).collect();
    // a struct with doors only is a part as well; of one name all structs must be
    let mut parts = BTreeSet::from(["Box", "OnDemand"]);
    loop {
        let doors = |(_, of): &(_, Vec<String>)| of.iter().all(|name| parts.contains(name.as_str()));
        let others: BTreeSet<_> =
            structs.iter().filter(|s| !s.1.iter().all(doors)).map(|s| s.0.as_str()).collect();
        let more = structs.iter().map(|s| s.0.as_str()).filter(|name| !others.contains(name)).collect();
        if parts.is_superset(&more) {
            break;
        }
        parts.extend(more);
    }
    let mut wrong = Vec::new();
    for (path, source) in &files {
        let written =
            |name: &String| files.iter().any(|(other, s)| other != path && s.assigned.contains(name));
        for (of, open) in source.open.iter().filter(|(of, _)| !values.contains(of.as_str())) {
            let crosses = |(name, held): &&Open| {
                !name.is_empty() && (!held.iter().all(|held| parts.contains(held.as_str())) || written(name))
            };
            wrong.extend(
                open.iter().filter(crosses).map(|(name, _)| format!("{path}: others may write {of}::{name}")),
            );
        }
    }
    let stale =
        values.iter().filter(|value| !structs.iter().any(|(of, open)| of == *value && !open.is_empty()));
    wrong.extend(stale.map(|value| format!("{VALUES}: {value} has no field that others may write")));
    Ok(wrong)
}

/// A file of a crate.
struct File {
    name: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: Vec<Item>,
    defined: BTreeSet<String>,
}

/// The circles of more than [`FILES_MAX`] files among those that `start` brings in, the largest first.
fn circles_of(start: &Path, source: &dyn Fn(&Path) -> Option<String>) -> Vec<Vec<String>> {
    let mut files = Vec::new();
    load(start, true, None, source, &mut files);
    let mut arrows = vec![BTreeSet::new(); files.len()];
    for (from, file) in files.iter().enumerate() {
        for item in &file.items {
            let Some((to, _)) = resolve(&files, from, item.inside, &item.path, 0) else { continue };
            let below = std::iter::successors(Some(to), |&at| files[at].parent).skip(1).any(|at| at == from);
            if to != from && file.parent != Some(to) && !(item.is_public && below) {
                arrows[from].insert(to);
            }
        }
    }
    let reached = |from: usize| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(at) = left.pop() {
            left.extend(arrows[at].iter().filter(|&&to| seen.insert(to)));
        }
        seen
    };
    let all: Vec<BTreeSet<usize>> = (0..files.len()).map(reached).collect();
    let mut circles: BTreeSet<Vec<usize>> = BTreeSet::new();
    for (at, reach) in all.iter().enumerate() {
        circles.insert(reach.iter().copied().filter(|&to| all[to].contains(&at)).collect());
    }
    let mut circles: Vec<_> = circles.into_iter().filter(|circle| circle.len() > FILES_MAX).collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles.into_iter().map(|circle| circle.into_iter().map(|at| files[at].name.clone()).collect()).collect()
}

/// Reads a file and the children that it declares; its place in `files`, if it is there.
fn load(
    path: &Path,
    is_root: bool,
    parent: Option<usize>,
    source: &dyn Fn(&Path) -> Option<String>,
    files: &mut Vec<File>,
) -> Option<usize> {
    let parts = read(&source(path)?).ok()?;
    let at = files.len();
    let directory = path.parent()?.to_path_buf();
    let stem = path.file_stem()?.to_string_lossy().into_owned();
    let flat = is_root || stem == "mod";
    let below = if flat { directory.clone() } else { directory.join(&stem) };
    let name = if stem == "mod" { directory.file_name()?.to_string_lossy().into_owned() } else { stem };
    let (items, defined) = (parts.items, parts.defined);
    files.push(File { name, parent, children: BTreeMap::new(), items, defined });
    for child in parts.modules {
        let places = [below.join(format!("{child}.rs")), below.join(&child).join("mod.rs")];
        if let Some(index) = places.iter().find_map(|place| load(place, false, Some(at), source, files)) {
            files[at].children.insert(child, index);
        }
    }
    Some(at)
}

/// Follows re-exports this deep.
const DEPTH_MAX: usize = 16;

/// The file that a path leads to, and whether it means the file itself; `None` for other crates.
fn resolve(
    files: &[File],
    from: usize,
    inside: usize,
    path: &[String],
    depth: usize,
) -> Option<(usize, bool)> {
    if depth > DEPTH_MAX {
        return None;
    }
    let (mut at, mut inside, mut named) = (from, inside, false);
    for (place, word) in path.iter().enumerate() {
        named = true;
        match word.as_str() {
            "crate" if place == 0 => at = 0,
            "self" => {}
            // an inline module's parent is the same file
            "super" if inside > 0 => inside -= 1,
            "super" => at = files[at].parent?,
            "*" => return Some((at, true)),
            word => {
                if let Some(&child) = files[at].children.get(word) {
                    at = child;
                    continue;
                }
                let through = files[at].items.iter().find(|item| item.alias.as_deref() == Some(word));
                if let Some(item) = through {
                    // another crate's name, or one that is followed from there
                    let (to, is_file) = resolve(files, at, item.inside, &item.path, depth + 1)?;
                    (at, named) = (to, is_file);
                } else {
                    let glob = files[at].items.iter().filter(|item| {
                        item.alias.as_deref() == Some("*")
                            && ["crate", "self", "super"].contains(&item.path[0].as_str())
                    });
                    let globs =
                        glob.filter_map(|item| resolve(files, at, item.inside, &item.path, depth + 1));
                    let there = globs.map(|(to, _)| to).find(|&to| files[to].defined.contains(word));
                    match there {
                        Some(to) => at = to,
                        None if place == 0 && !files[at].defined.contains(word) => return None,
                        None => {}
                    }
                    named = false;
                }
                if !named {
                    return Some((at, false));
                }
            }
        }
    }
    Some((at, named))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let find = |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path);
        circles_of(Path::new("lib.rs"), &|path| find(path).map(|(_, text)| text.to_string()))
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod a; mod b; mod c; pub use a::A; use b as bee;");

    #[test]
    fn three_files_that_import_one_another_are_a_circle() {
        let found = circles(&[
            ROOT,
            ("a.rs", "use crate::b::{self, B}; pub struct A;"),
            ("b.rs", "fn f(x: super::c::C) {} pub struct B;"),
            // through the root's re-export, and two levels up from a child
            ("c.rs", "mod d; pub struct C;"),
            ("c/d.rs", "use super::C; use crate::A;"),
        ]);
        assert_eq!(found, Vec::<Vec<String>>::new(), "c itself leads nowhere: its child does");
        let a = ("a.rs", "use crate::b::B; pub struct A;");
        let b = ("b.rs", "fn f(x: super::c::C) {} pub struct B;");
        for c in [
            "use crate::A; pub struct C;",
            "pub struct C; mod x { use super::super::A; }",
            "use super::{bee, A as X}; pub struct C;",
        ] {
            assert_eq!(circles(&[ROOT, a, b, ("c.rs", c)]), [["a", "b", "c"]], "{c}");
        }
        for c in [
            "pub struct C; // crate::A",
            "const X: &str = \"crate::A\"; pub struct C;",
            "pub struct C; #[cfg(test)] mod tests { use crate::A; }",
        ] {
            assert!(circles(&[ROOT, a, b, ("c.rs", c)]).is_empty(), "{c}");
        }
    }

    #[test]
    fn parent_and_children_are_no_circle_but_cousins_are() {
        let root = ("lib.rs", "mod a;");
        let parent = ("a.rs", "mod b; mod c; pub use b::B; use c::C; struct P;");
        let b = ("a/b.rs", "use super::P; pub struct B;");
        assert!(circles(&[root, parent, b, ("a/c.rs", "use super::P; pub struct C;")]).is_empty());
        let (b, c) =
            (("a/b.rs", "use super::c::C; pub struct B;"), ("a/c.rs", "use super::B; pub struct C;"));
        assert!(circles(&[root, parent, b, c]).is_empty(), "two files are allowed");
        let d = ("a/b/d.rs", "use crate::a::P; use crate::a::c::C;");
        let b = ("a/b.rs", "mod d; use d::D; pub struct B;");
        assert_eq!(circles(&[root, parent, b, c, d]), [["a", "b", "d", "c"]]);
    }

    #[test]
    fn fields_that_others_may_write_are_counted() {
        let a = "pub struct A { pub a: u8, pub(crate) b: Vec<u8>, c: u8, pub n: N }\n struct N(pub u8);\n pub struct Event { pub a: u8 }\n\
                 struct U; impl A { pub fn f() {} } #[cfg(test)] mod tests { struct T { pub x: u8 } }";
        let b = "pub struct B { pub p: P, pub q: Box<[P]>, pub r: OnDemand<P>, pub s: Option<P> } pub struct P { x: u8 } fn f() { b.p = P; }";
        let told = |more: &str| {
            let files =
                [("a", a), ("b", b), ("c", more)].map(|(path, text)| (path.to_string(), text.to_string()));
            open_fields(&files, &BTreeSet::from(["Event", "U"]))
                .unwrap()
                .join(", ")
                .replace("others may write ", "")
        };
        let own = "a: A::a, a: A::b, a: A::n, b: B::s";
        let stale = "xtask/borders: U has no field that";
        assert!(
            told("fn f() { b.p.x = 1; b.q[0].x = 1; }").starts_with(&format!("{own}, {stale}")),
            "a part is a door"
        );
        let exchanged = told("fn f() { (b.p, b.r) = P; self.q = P; }");
        assert!(exchanged.starts_with("a: A::a, a: A::b, a: A::n, b: B::p, b: B::r, b: B::s"), "{exchanged}");
    }
}
