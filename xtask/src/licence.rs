//! Which licences a dependency may have: an evaluation of SPDX expressions, in place of a tool that would have to be compiled.

/// Licences that ask for no more than to be named. MPL-2.0 is in it because it binds changes to its own files only; anything
/// that reaches further (LGPL, GPL, AGPL) is left out, since the provider is loaded into other people's programs.
const ALLOWED: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Zlib",
    "CC0-1.0",
    "BSL-1.0",
    "Unlicense",
    "0BSD",
    "MPL-2.0",
];

/// Exceptions that only give more freedom.
const EXCEPTIONS: &[&str] = &["LLVM-exception"];

/// Whether some choice that the expression offers is allowed. What cannot be read is not.
pub fn is_allowed(expression: &str) -> bool {
    // `MIT/Apache-2.0` is an old way to write OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, at: 0 };
    parser.any() == Some(true) && parser.at == words.len()
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
}

impl Parser<'_> {
    fn next_is(&mut self, word: &str) -> bool {
        let is = self.words.get(self.at) == Some(&word);
        self.at += usize::from(is);
        is
    }

    fn any(&mut self) -> Option<bool> {
        let mut result = self.all()?;
        while self.next_is("OR") {
            result |= self.all()?;
        }
        Some(result)
    }

    fn all(&mut self) -> Option<bool> {
        let mut result = self.one()?;
        while self.next_is("AND") {
            result &= self.one()?;
        }
        Some(result)
    }

    fn one(&mut self) -> Option<bool> {
        if self.next_is("(") {
            let result = self.any()?;
            return self.next_is(")").then_some(result);
        }
        let name = *self.words.get(self.at)?;
        self.at += 1;
        let mut result = ALLOWED.contains(&name);
        if self.next_is("WITH") {
            result &= EXCEPTIONS.contains(self.words.get(self.at)?);
            self.at += 1;
        }
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn one_allowed_choice_is_enough_and_every_part_is_needed() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT",
            "MIT MIT",
            "Apache-2.0 WITH something",
            "LGPL-2.1 OR AGPL-3.0",
        ] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }
}
