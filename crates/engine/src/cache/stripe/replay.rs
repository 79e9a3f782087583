//! Recording of changes as effects, and replay of effects.

use super::{Found, Key, Kind, Stripe, Value};
use crate::cache::effects::{Effect, Effects};
use crate::cache::structures::Structure;
use crate::error::{Error, Result};

impl Stripe {
    /// Starts or stops recording changes for [`Stripe::take_effects`].
    pub fn record_effects(&mut self, is_wanted: bool) {
        self.effects = is_wanted.then(Box::default);
    }

    /// Takes the effects recorded since the last call, in their order. A flush is not among them.
    pub fn take_effects(&mut self) -> Option<Effects> {
        let effects = self.effects.as_mut().filter(|effects| !effects.is_empty())?;
        Some(std::mem::take(&mut **effects))
    }

    /// Returns the number of bytes that [`Stripe::take_effects`] would return.
    pub fn effects_bytes(&self) -> usize {
        self.effects.as_ref().map_or(0, |effects| effects.bytes.len())
    }

    /// Records the current value and expiry time of an entry.
    pub(super) fn record_put(&mut self, at: u32) {
        let slot = &self.slots[at];
        let expires_ms = self.expires_ms(slot);
        let version = self.version_of(slot);
        if let Some(effects) = &mut self.effects {
            let put = Effect::Put { key: slot.key(), value: slot.value(), version, expires_ms };
            effects.push(slot.hash, &put);
        }
    }

    /// Records the edits of a structure, with the newest version.
    pub(super) fn record_edits(&mut self, key: Key<'_>, kind: Kind, is_new: bool, edits: Option<Vec<u8>>) {
        if let Some(edits) = edits {
            let changed = Effect::Changed { key: key.bytes, kind, version: self.version, is_new, edits: &edits };
            self.record_effect(key.mark(), &changed);
        }
    }

    pub(super) fn record_effect(&mut self, mark: u32, effect: &Effect<'_>) {
        if let Some(effects) = &mut self.effects {
            effects.push(mark, effect);
        }
    }

    /// Starts or stops the replay mode, in which only [`Stripe::replay`] is called: it needs no room, and nothing is
    /// evicted.
    pub fn begin_replay(&mut self, is_replaying: bool) {
        self.is_replaying = is_replaying;
    }

    /// Applies an effect to a key again. The entry that it changed may be missing if a later effect contains all of it:
    /// then the effect is ignored. No entry expires during a replay: the caller calls [`Stripe::expire`] for it.
    pub fn replay(&mut self, key: Key<'_>, effect: &Effect<'_>, now_ms: u64) -> Result<()> {
        let existing = self.find(key, || 0);
        match *effect {
            Effect::Put { value, version, expires_ms, .. } => {
                let at = match existing {
                    Some(at) => self.replace(key, at, value, 0, || now_ms)?,
                    None => self.insert(key, Kind::Bytes, value, 0)?,
                };
                self.set_timer(at, expires_ms, now_ms);
                self.reached(version, Some(at));
            }
            Effect::Deleted { version, .. } => {
                if let Some(at) = existing {
                    self.remove(at);
                }
                self.reached(version, None);
            }
            Effect::Expires { expires_ms, .. } => {
                if let Some(at) = existing {
                    self.set_timer(at, expires_ms, now_ms);
                }
            }
            Effect::Changed { kind, version, is_new, edits, .. } => {
                let at = if is_new {
                    self.make_again(key, existing, kind, edits)?
                } else {
                    self.redo(existing, kind, edits)?
                };
                self.reached(version, at);
            }
            Effect::Flushed => self.flush(),
            // The caller swaps both stripes.
            Effect::Answered { .. } | Effect::Swapped { .. } => {}
        }
        Ok(())
    }

    /// Raises the number of the last change to `version`, if it is lower.
    pub fn count_from(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// Appends the effects that restore an entry, and returns their size in bytes.
    pub fn dump(found: Found<'_>, out: &mut Vec<u8>) -> usize {
        let before = out.len();
        let Found { key, value, version, expires_ms, .. } = found;
        match value {
            // The key of a stream is restored from the topic of the stream.
            Value::Structure(Structure::Stream(_)) => {}
            Value::Bytes(value) => Effect::Put { key, value, version, expires_ms }.encode(out),
            Value::Structure(structure) => {
                let kind = structure.kind();
                let edits = structure.dumped();
                Effect::Changed { key, kind, version, is_new: true, edits: &edits }.encode(out);
                if expires_ms.is_some() {
                    Effect::Expires { key, expires_ms }.encode(out);
                }
            }
        }
        out.len() - before
    }

    fn make_again(&mut self, key: Key<'_>, existing: Option<u32>, kind: Kind, edits: &[u8]) -> Result<Option<u32>> {
        if let Some(at) = existing {
            self.remove(at);
        }
        let mut structure =
            Structure::empty(kind).ok_or_else(|| Error::malformed("values of bytes and streams have no edits"))?;
        structure.redo(edits)?;
        if structure.is_empty() { Ok(None) } else { self.insert_structure(key, structure).map(Some) }
    }

    fn redo(&mut self, existing: Option<u32>, kind: Kind, edits: &[u8]) -> Result<Option<u32>> {
        let Some((at, (number, _))) = existing.and_then(|at| Some((at, self.slots[at].structure()?))) else {
            return Ok(None);
        };
        let before = self.slots[at].bytes();
        let Some(structure) = self.structures[number].as_deref_mut().filter(|stored| stored.kind() == kind) else {
            return Ok(None);
        };
        structure.redo(edits)?;
        let bytes = structure.bytes();
        let is_empty = structure.is_empty();
        self.slots[at].value_mut()[4..].copy_from_slice(&bytes.to_le_bytes());
        self.resized(at, before);
        if is_empty {
            self.remove(at);
        }
        Ok((!is_empty).then_some(at))
    }

    /// Sets the version of a replayed change.
    fn reached(&mut self, version: u64, at: Option<u32>) {
        self.version = self.version.max(version);
        if let Some(at) = at {
            self.slots[at].version = version;
        }
        // Reserves the bytes in use from the budget, as far as it has any.
        self.share.has_room(1);
    }
}
