//! Hash: fields with values, in no particular order.

use indexmap::IndexMap;

use super::{INDEX_BYTES, PART_BYTES};

#[derive(Clone, Debug, Default)]
pub struct Hash {
    fields: IndexMap<Box<[u8]>, Box<[u8]>, foldhash::fast::RandomState>,
    bytes: u64,
}

impl Hash {
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes + (2 * PART_BYTES + INDEX_BYTES) * self.fields.len() as u64
    }

    pub fn get(&self, field: &[u8]) -> Option<&[u8]> {
        self.fields.get(field).map(|value| &**value)
    }

    /// Returns the field at a place. Removing a field changes no place below it.
    pub fn at(&self, place: usize) -> Option<(&[u8], &[u8])> {
        self.fields.get_index(place).map(|(field, value)| (&**field, &**value))
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(field, value)| (&**field, &**value))
    }

    /// Sets a field. Returns `true` if the field is new.
    pub fn set(&mut self, field: &[u8], value: &[u8]) -> bool {
        self.bytes += value.len() as u64;
        if let Some(current) = self.fields.get_mut(field) {
            self.bytes -= current.len() as u64;
            *current = value.into();
            return false;
        }
        self.bytes += field.len() as u64;
        self.fields.insert(field.into(), value.into());
        true
    }

    pub fn remove(&mut self, field: &[u8]) -> Option<Box<[u8]>> {
        let (field, value) = self.fields.swap_remove_entry(field)?;
        self.bytes -= (field.len() + value.len()) as u64;
        Some(value)
    }
}
