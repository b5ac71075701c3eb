//! Buffers that are not in use, kept for the next use. Owns: how many are kept, and for how long.

/// Buffers of one kind. The last that was given back is used first: it is still in the processor's cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spare {
    buffers: Vec<Vec<u8>>,
    /// Fewest that there were since [`Spare::tidy`].
    fewest: usize,
}

impl Spare {
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let b = self.buffers.pop();
        self.fewest = self.fewest.min(self.buffers.len());
        b
    }

    /// Keeps a buffer, unless there are `most` already.
    pub fn put(&mut self, b: Vec<u8>, most: usize) {
        if self.buffers.len() < most {
            self.buffers.push(b);
        }
    }

    /// Gives back those that were not needed since this was last done.
    pub fn tidy(&mut self) {
        self.buffers.truncate(self.buffers.len() - self.fewest);
        self.fewest = self.buffers.len();
        if self.buffers.is_empty() {
            self.buffers = Vec::new();
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.buffers.len()
    }
}
