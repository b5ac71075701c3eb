//! What the borders need to know of a file of Rust: the paths that it names, its modules, its definitions, fields that are open and that are written.
//! Not what is under `#[cfg(test)]`; of macros the arguments, where they are expressions.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprAssign, ExprField, Field, ItemMod, ItemStruct, ItemUse, Macro, Member, PathSegment,
};
use syn::{Token, UseTree, Visibility};
use xtask::workspace::root;

/// A path that a file names.
#[derive(Debug, PartialEq)]
pub struct Item {
    /// Its words, such as `crate`, `path`, `Path`; the last is `*` for everything.
    pub path: Vec<String>,
    /// What a `use` calls it here; `None` for a path in code.
    pub alias: Option<String>,
    /// Whether it is a `use` with a visibility.
    pub is_public: bool,
    /// In how many modules with a body of their own it stands.
    pub inside: usize,
}

/// A field that has a visibility: its name, and the names in its type.
pub type Open = (String, Vec<String>);

/// What was found in a file.
#[derive(Default)]
pub struct Source {
    /// Paths.
    pub items: Vec<Item>,
    /// Modules in files of their own.
    pub modules: Vec<String>,
    /// Names of types, functions, constants and traits.
    pub defined: BTreeSet<String>,
    /// Structs, and their fields that have a visibility.
    pub open: Vec<(String, Vec<Open>)>,
    /// Names of fields that are assigned to, and not by a method of their struct.
    pub assigned: BTreeSet<String>,
    inside: usize,
}

/// Takes a file apart.
pub fn read(text: &str) -> Result<Source> {
    let mut found = Source::default();
    found.visit_file(&syn::parse_file(text).context("no Rust")?);
    Ok(found)
}

/// Every file of Rust below a directory, by its path from the root of the checkout; not those that hold a module's tests.
pub fn sources(directory: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for path in list(directory)? {
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs")
            && path.file_stem().is_some_and(|s| s != "tests")
        {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("could not read {}", path.display()))?;
            found.push((path.strip_prefix(root()).unwrap_or(&path).display().to_string(), text));
        }
    }
    Ok(found)
}

/// What is in a directory, in the order of its names.
pub fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("could not read {}", directory.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|a| a.path().is_ident("cfg")).any(|a| {
        let condition = a.meta.require_list().map_or(String::new(), |list| list.tokens.to_string());
        condition == "test" || condition.starts_with("all (test") || condition.starts_with("all(test")
    })
}

/// The names in a type.
struct Names(Vec<String>);

impl<'a> Visit<'a> for Names {
    fn visit_path_segment(&mut self, segment: &'a PathSegment) {
        self.0.push(segment.ident.to_string());
        visit::visit_path_segment(self, segment);
    }
}

fn is_self(e: &Expr) -> bool {
    matches!(e, Expr::Path(path) if path.path.is_ident("self"))
}

impl Source {
    fn assign(&mut self, to: &Expr) {
        match to {
            Expr::Field(ExprField { member: Member::Named(name), base, .. }) if !is_self(base) => {
                self.assigned.insert(name.to_string());
            }
            Expr::Tuple(all) => all.elems.iter().for_each(|to| self.assign(to)),
            _ => {}
        }
    }

    fn tree(&mut self, tree: &UseTree, mut head: Vec<String>, is_public: bool) {
        let (last, alias) = match tree {
            UseTree::Path(path) => {
                head.push(path.ident.to_string());
                return self.tree(&path.tree, head, is_public);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.tree(tree, head.clone(), is_public));
            }
            UseTree::Name(name) => (name.ident.to_string(), None),
            UseTree::Rename(rename) => (rename.ident.to_string(), Some(rename.rename.to_string())),
            UseTree::Glob(_) => ("*".into(), None),
        };
        // `a::{self}` is `a`
        if last != "self" || head.is_empty() {
            head.push(last);
        }
        let alias = alias.or_else(|| head.last().cloned());
        self.items.push(Item { path: head, alias, is_public, inside: self.inside });
    }
}

impl<'a> Visit<'a> for Source {
    fn visit_item(&mut self, item: &'a syn::Item) {
        use syn::Item as I;
        let (attributes, name) = match item {
            I::Const(x) => (&x.attrs, Some(&x.ident)),
            I::Enum(x) => (&x.attrs, Some(&x.ident)),
            I::Fn(x) => (&x.attrs, Some(&x.sig.ident)),
            I::Static(x) => (&x.attrs, Some(&x.ident)),
            I::Struct(x) => (&x.attrs, Some(&x.ident)),
            I::Trait(x) => (&x.attrs, Some(&x.ident)),
            I::Type(x) => (&x.attrs, Some(&x.ident)),
            I::Impl(x) => (&x.attrs, None),
            I::Mod(x) => (&x.attrs, None),
            I::Use(x) => (&x.attrs, None),
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            self.defined.extend(name.map(ToString::to_string));
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'a ItemMod) {
        match &module.content {
            None => self.modules.push(module.ident.to_string()),
            Some(_) => {
                self.inside += 1;
                visit::visit_item_mod(self, module);
                self.inside -= 1;
            }
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        self.tree(&item.tree, Vec::new(), !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_item_struct(&mut self, item: &'a ItemStruct) {
        let is_open = |field: &&Field| !matches!(field.vis, Visibility::Inherited);
        let open = item.fields.iter().filter(is_open).map(|field| {
            let mut names = Names(Vec::new());
            names.visit_type(&field.ty);
            (field.ident.as_ref().map(ToString::to_string).unwrap_or_default(), names.0)
        });
        self.open.push((item.ident.to_string(), open.collect()));
        visit::visit_item_struct(self, item);
    }

    fn visit_expr_assign(&mut self, assignment: &'a ExprAssign) {
        self.assign(&assignment.left);
        visit::visit_expr_assign(self, assignment);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1 {
            let words = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.items.push(Item { path: words, alias: None, is_public: false, inside: self.inside });
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'a Macro) {
        self.visit_path(&called.path);
        let arguments = called.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated);
        let mut inner = Source { inside: self.inside, ..Source::default() };
        arguments.iter().flatten().for_each(|argument| inner.visit_expr(argument));
        self.items.append(&mut inner.items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_wherever_they_stand_but_in_tests() {
        let text = "pub(crate) use crate::a::{self, b::{C, D as E}, *}; use super::f; mod g; mod h { use super::I; }
            // crate::no\n fn j() { g::k::<u8>(); assert!(m::n(\"crate::no\") > 0) } #[cfg(test)] mod t { use crate::no; }";
        let found = read(text).unwrap();
        let shown =
            |i: &Item| format!("{}={} {}", i.path.join("::"), i.alias.as_deref().unwrap_or("-"), i.inside);
        let shown: Vec<String> = found.items.iter().map(shown).collect();
        let uses =
            ["crate::a=a 0", "crate::a::b::C=C 0", "crate::a::b::D=E 0", "crate::a::*=* 0", "super::f=f 0"];
        assert_eq!(shown[..5], uses);
        assert_eq!(shown[5..], ["super::I=I 1", "g::k=- 0", "m::n=- 0"]);
        assert!(found.items[0].is_public && !found.items[4].is_public);
        assert_eq!((found.modules, found.defined.len()), (vec!["g".to_string()], 1));
    }
}
