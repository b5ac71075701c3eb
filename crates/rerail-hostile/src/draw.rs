//! What a story draws from its input; when that is at its end, zeros.

use arbitrary::Unstructured;

/// A story that has an input.
pub(crate) trait Draw<'a> {
    /// The rest of it.
    fn input(&mut self) -> &mut Unstructured<'a>;

    fn byte(&mut self) -> u8 {
        self.input().arbitrary().unwrap_or(0)
    }

    /// A number below `n`; 0 if there is none.
    fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { usize::from(self.byte()) % n }
    }
}
