//! Blocks of the newest entries of the log, in memory: those that are not applied yet, and as many of the others as may
//! still be sent to a node that is a little behind.

use std::collections::VecDeque;

use consensus::Index;

use crate::link::Block;

/// Bytes of applied blocks that are kept for other nodes.
const KEPT_BYTES: u64 = 32 << 20;
/// Memory of an entry without a block.
const ENTRY_BYTES: u64 = 64;

/// Blocks by their index, without gaps; `None` for an entry that has none.
pub(super) struct Blocks {
    first: Index,
    blocks: VecDeque<Option<Block>>,
    bytes: u64,
}

fn cost(block: Option<&Block>) -> u64 {
    ENTRY_BYTES + block.map_or(0, |block| u64::from(block.size().get()))
}

impl Blocks {
    /// Creates an empty table, which begins at an index.
    pub fn from(first: Index) -> Self {
        Self { first, blocks: VecDeque::new(), bytes: 0 }
    }

    pub fn get(&self, index: Index) -> Option<&Block> {
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        self.blocks.get(at)?.as_ref()
    }

    /// Appends the block of the next entry.
    pub fn push(&mut self, block: Option<Block>) {
        self.bytes += cost(block.as_ref());
        self.blocks.push_back(block);
    }

    /// Removes all blocks from an index on.
    pub fn cut(&mut self, from: Index) {
        let kept = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        while self.blocks.len() > kept {
            let block = self.blocks.pop_back().flatten();
            self.bytes -= cost(block.as_ref());
        }
    }

    /// Removes the oldest blocks that are applied and too many. Returns the index before the first one that is left.
    pub fn trim(&mut self, applied: Index) -> Index {
        while self.bytes > KEPT_BYTES
            && self.first <= applied
            && let Some(block) = self.blocks.pop_front()
        {
            self.bytes -= cost(block.as_ref());
            self.first += 1;
        }
        self.first - 1
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use storage::EntryKind;

    use super::*;
    use crate::link::Row;

    fn block(bytes: usize) -> Option<Block> {
        Block::new(vec![Row::new(EntryKind::Batch, 1, Bytes::from(vec![0; bytes]))])
    }

    #[test]
    fn applied_blocks_leave_when_they_are_too_many() {
        let mut blocks = Blocks::from(5);
        for _ in 0..5 {
            blocks.push(block(10 << 20));
        }
        blocks.push(None);
        assert_eq!((blocks.first, blocks.blocks.len()), (5, 6));
        assert_eq!(blocks.trim(4), 4, "nothing is applied");
        assert_eq!(blocks.trim(5), 5);
        assert_eq!(blocks.trim(10), 6, "the rest is little enough");
        assert!(blocks.get(6).is_none() && blocks.get(7).is_some() && blocks.get(10).is_none());
        blocks.cut(8);
        assert_eq!((blocks.first, blocks.blocks.len()), (7, 1));
        blocks.cut(1);
        assert_eq!((blocks.first, blocks.blocks.len(), blocks.bytes()), (7, 0, 0));
    }
}
