//! Numbered places for values, allocated in pages: growing moves no value.

const PAGE: usize = 64;
const _: () = assert!(PAGE.is_power_of_two());

/// Number that is not a place.
pub(super) const NONE: u32 = u32::MAX;

/// Numbered places for values. A free place holds the default value.
pub(super) struct Slab<T> {
    pages: Vec<Box<[T; PAGE]>>,
    free: Vec<u32>,
    /// Number of places that were ever taken. Later places have never been used.
    end: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), free: Vec::new(), end: 0 }
    }
}

impl<T: Default> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            if self.end as usize == self.pages.len() * PAGE {
                self.pages.push(Box::new(std::array::from_fn(|_| T::default())));
            }
            self.end += 1;
            self.end - 1
        });
        self[at] = value;
        at
    }

    pub(super) fn remove(&mut self, at: u32) -> T {
        self.free.push(at);
        std::mem::take(&mut self[at])
    }

    /// Returns a number above all places that were ever taken.
    pub(super) fn end(&self) -> u32 {
        self.end
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        &self.pages[at as usize / PAGE][at as usize % PAGE]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.pages[at as usize / PAGE][at as usize % PAGE]
    }
}
