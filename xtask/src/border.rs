//! The borders inside crates: circles of files, and fields that others may write. What there is of both is listed in `xtask/borders`, a
//! ratchet: nothing may grow or join, and what has shrunk must be written down (`cargo xtask check --shrink`), so that it stays so.
//!
//! A file points to another if it names it, or something defined there, by a path or a `use`; a name that comes through a re-export
//! leads to where it is defined. Not counted: a child that uses its own parent's items, `mod` declarations, a parent's `pub use` of what
//! its children define, whatever is under `#[cfg(test)]`, and calls of methods, which name no file.

use crate::source::{Item, Source, list, read, sources};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use xtask::workspace::root;

/// Where what is known is written down.
const KNOWN: &str = "xtask/borders";
/// The crate whose parts own their fields.
const PARTS: &str = "crates/rerail-core/src";
/// Two files may be one thing in two rooms; more are a circle.
const FILES_MAX: usize = 2;

/// What was counted: of each border its size.
type Counts = BTreeMap<String, usize>;

/// Compares what is there with what is known; with `shrink` writes smaller sizes down.
pub fn run(shrink: bool) -> Result<()> {
    let file = root().join(KNOWN);
    let text = std::fs::read_to_string(&file).with_context(|| format!("could not read {KNOWN}"))?;
    let (known, values) = parse(&text)?;
    let (mut found, mut circles) = (Counts::new(), BTreeMap::new());
    let mut crates: Vec<PathBuf> = list(&root().join("crates"))?;
    crates.push(root().join("xtask"));
    for directory in crates {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for start in ["src/lib.rs", "src/main.rs"].map(|start| directory.join(start)) {
            if start.is_file() {
                let at = format!("{name} {}", start.file_stem().unwrap_or_default().to_string_lossy());
                for (number, circle) in
                    circles_of(&start, &|p| std::fs::read_to_string(p).ok()).into_iter().enumerate()
                {
                    let key = format!("circle {at} {}", number + 1);
                    found.insert(key.clone(), circle.len());
                    circles.insert(key, circle);
                }
            }
        }
    }
    for (path, size) in open_fields(&sources(&root().join(PARTS))?, &values)? {
        found.insert(format!("fields {path}"), size);
    }
    found.retain(|_, size| *size > 0);
    let (grown, shrunk) = compare(&known, &found);
    for (key, circle) in circles.iter().filter(|(key, _)| grown.iter().any(|line| line.starts_with(*key))) {
        println!("{key}: {}", circle.join(" "));
    }
    if shrink && grown.is_empty() {
        let kept = |line: &&str| line.starts_with('#') || line.starts_with("value ");
        let head: String = text.lines().filter(kept).map(|line| format!("{line}\n")).collect();
        let lines: String = found.iter().map(|(key, size)| format!("{key} {size}\n")).collect();
        std::fs::write(&file, head + &lines).with_context(|| format!("could not write {KNOWN}"))?;
        return Ok(());
    }
    let all: Vec<String> = grown
        .into_iter()
        .chain(shrunk.into_iter().map(|line| line + ": run `cargo xtask check --shrink`"))
        .collect();
    if !all.is_empty() {
        let what = "circles of more than two files, or fields that other files may write";
        bail!("{what}, are others than {KNOWN} lists:\n  {}", all.join("\n  "));
    }
    Ok(())
}

/// The sizes, and the structs that are values.
fn parse(text: &str) -> Result<(Counts, BTreeSet<String>)> {
    let (mut sizes, mut values) = (Counts::new(), BTreeSet::new());
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        match (line.strip_prefix("value "), line.rsplit_once(' ')) {
            (Some(name), _) => drop(values.insert(name.to_string())),
            (None, Some((key, size))) if size.parse::<usize>().is_ok() => {
                sizes.insert(key.to_string(), size.parse()?);
            }
            _ => bail!("{KNOWN}: `{line}` ends in no number"),
        }
    }
    Ok((sizes, values))
}

/// What is more than known, and what is less.
fn compare(known: &Counts, found: &Counts) -> (Vec<String>, Vec<String>) {
    let keys: BTreeSet<&String> = known.keys().chain(found.keys()).collect();
    let of = |counts: &Counts, key: &String| counts.get(key).copied().unwrap_or(0);
    let line = |key: &String| format!("{key}: {} known, {} found", of(known, key), of(found, key));
    let (grown, rest): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| of(found, key) > of(known, key));
    let shrunk = rest.into_iter().filter(|key| of(found, key) < of(known, key));
    (grown.iter().map(|key| line(key)).collect(), shrunk.map(line).collect())
}

/// Named fields with any visibility, of each file, in structs that are not among `values`. A field that holds a part, whose own fields are all
/// private, is a door to that part: it counts only if another file puts a new one into its place.
fn open_fields(files: &[(String, String)], values: &BTreeSet<String>) -> Result<Vec<(String, usize)>> {
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
    let count = |path: &String, source: &Source| {
        let written =
            |name| files.iter().any(|(other, source)| other != path && source.assigned.contains(name));
        let open = source.open.iter().filter(|(name, _)| !values.contains(name)).flat_map(|(_, open)| open);
        open.filter(|(name, of)| {
            !name.is_empty() && (!of.iter().all(|of| parts.contains(of.as_str())) || written(name))
        })
        .count()
    };
    Ok(files.iter().map(|(path, source)| (path.clone(), count(path, source))).collect())
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
        let count = |more: &str| {
            let files =
                [("a", a), ("b", b), ("c", more)].map(|(path, text)| (path.to_string(), text.to_string()));
            let found = open_fields(&files, &BTreeSet::from(["Event".into()])).unwrap();
            found.into_iter().map(|(_, size)| size).collect::<Vec<_>>()
        };
        assert_eq!(count("fn f() { b.p.x = 1; b.q[0].x = 1; }"), [3, 1, 0], "a part is a door");
        assert_eq!(count("fn f() { (b.p, b.r) = P; self.q = P; }"), [3, 3, 0], "unless others exchange it");
    }

    #[test]
    fn nothing_may_grow_and_what_shrinks_is_written_down() {
        let counts = |text: &str| parse(text).unwrap().0;
        let known = counts("# why\ncircle x lib 1 30\nfields a.rs 4\n");
        assert_eq!(compare(&known, &known), (Vec::new(), Vec::new()));
        let (grown, shrunk) = compare(&known, &counts("circle x lib 1 31\nfields b.rs 1\n"));
        assert_eq!(grown, ["circle x lib 1: 30 known, 31 found", "fields b.rs: 0 known, 1 found"]);
        assert_eq!(shrunk, ["fields a.rs: 4 known, 0 found"]);
        assert!(parse("circle x lib").is_err());
    }
}
