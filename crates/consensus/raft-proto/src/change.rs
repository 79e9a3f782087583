//! Changes of members in their two forms, and the bytes of both.

use std::borrow::Cow;

use protobuf::{Message, ProtobufError, ProtobufResult};

use crate::eraftpb::{ConfChange, ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2};

/// Change of members in either form.
pub trait ConfChangeI {
    fn into_v2(self) -> ConfChangeV2;
    fn as_v2(&self) -> Cow<'_, ConfChangeV2>;
    /// Returns the change of one member; `None` for the form with several.
    fn as_v1(&self) -> Option<&ConfChange>;
}

impl ConfChangeI for ConfChange {
    fn into_v2(self) -> ConfChangeV2 {
        let single = ConfChangeSingle { change_type: self.change_type, node_id: self.node_id };
        ConfChangeV2 { changes: vec![single], context: self.context, ..ConfChangeV2::default() }
    }

    fn as_v2(&self) -> Cow<'_, ConfChangeV2> {
        Cow::Owned(self.clone().into_v2())
    }

    fn as_v1(&self) -> Option<&ConfChange> {
        Some(self)
    }
}

impl ConfChangeI for ConfChangeV2 {
    fn into_v2(self) -> ConfChangeV2 {
        self
    }

    fn as_v2(&self) -> Cow<'_, ConfChangeV2> {
        Cow::Borrowed(self)
    }

    fn as_v1(&self) -> Option<&ConfChange> {
        None
    }
}

impl ConfChangeV2 {
    /// Returns whether the change passes through a joint configuration, and then whether the engine leaves it by
    /// itself. A change of one member needs none.
    pub fn enter_joint(&self) -> Option<bool> {
        match self.transition {
            ConfChangeTransition::Auto if self.changes.len() <= 1 => None,
            ConfChangeTransition::Auto | ConfChangeTransition::Implicit => Some(true),
            ConfChangeTransition::Explicit => Some(false),
        }
    }

    /// Returns `true` for the change without members, which leaves a joint configuration.
    pub fn leave_joint(&self) -> bool {
        self.transition == ConfChangeTransition::Auto && self.changes.is_empty()
    }
}

/// Bytes of one step: its type and the node.
const STEP_BYTES: usize = 1 + 8;

impl ConfChangeV2 {
    /// Encodes the change: the transition (1 byte), and for each member the type (1 byte) and the node (8 bytes, big
    /// endian). The change without members that leaves a joint configuration has no bytes, as in the engine.
    pub fn encode(&self) -> Vec<u8> {
        if self.leave_joint() {
            return Vec::new();
        }
        let mut bytes = Vec::with_capacity(1 + STEP_BYTES * self.changes.len());
        bytes.push(self.transition as u8);
        for step in &self.changes {
            bytes.push(step.change_type as u8);
            bytes.extend_from_slice(&step.node_id.to_be_bytes());
        }
        bytes
    }

    /// Decodes a change; returns `None` if the bytes encode none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let Some((transition, steps)) = bytes.split_first() else {
            return Some(Self::default());
        };
        let transition = transition_of(*transition)?;
        let (steps, rest) = steps.as_chunks::<STEP_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        let step = |[change_type, node_id @ ..]: &[u8; STEP_BYTES]| {
            let change_type = change_type_of(*change_type)?;
            Some(ConfChangeSingle { change_type, node_id: u64::from_be_bytes(*node_id) })
        };
        let changes = steps.iter().map(step).collect::<Option<Vec<_>>>()?;
        Some(Self { transition, changes, ..Self::default() })
    }
}

/// The context of a change has no encoding: this product gives none.
impl Message for ConfChangeV2 {
    fn compute_size(&self) -> u32 {
        u32::try_from(1 + STEP_BYTES * self.changes.len()).unwrap_or(u32::MAX)
    }

    fn write_to_bytes(&self) -> ProtobufResult<Vec<u8>> {
        if self.context.is_empty() { Ok(self.encode()) } else { Err(ProtobufError::NotEncoded) }
    }

    fn merge_from_bytes(&mut self, bytes: &[u8]) -> ProtobufResult<()> {
        *self = Self::decode(bytes).ok_or(ProtobufError::Malformed)?;
        Ok(())
    }
}

/// This product proposes only the form with several members.
impl Message for ConfChange {
    fn compute_size(&self) -> u32 {
        0
    }

    fn write_to_bytes(&self) -> ProtobufResult<Vec<u8>> {
        Err(ProtobufError::NotEncoded)
    }

    fn merge_from_bytes(&mut self, _: &[u8]) -> ProtobufResult<()> {
        Err(ProtobufError::NotEncoded)
    }
}

fn transition_of(code: u8) -> Option<ConfChangeTransition> {
    use ConfChangeTransition::{Auto, Explicit, Implicit};
    [Auto, Implicit, Explicit].into_iter().find(|transition| *transition as u8 == code)
}

fn change_type_of(code: u8) -> Option<ConfChangeType> {
    use ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
    [AddNode, RemoveNode, AddLearnerNode].into_iter().find(|change_type| *change_type as u8 == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(transition: ConfChangeTransition, steps: &[(ConfChangeType, u64)]) -> ConfChangeV2 {
        let step = |(change_type, node_id): &(ConfChangeType, u64)| ConfChangeSingle {
            change_type: *change_type,
            node_id: *node_id,
        };
        ConfChangeV2 { transition, changes: steps.iter().map(step).collect(), ..ConfChangeV2::default() }
    }

    #[test]
    fn encoded_changes_decode() {
        use ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
        for (transition, steps) in [
            (ConfChangeTransition::Auto, &[][..]),
            (ConfChangeTransition::Auto, &[(AddNode, 1)]),
            (ConfChangeTransition::Implicit, &[(AddLearnerNode, u64::MAX), (RemoveNode, 0)]),
            (ConfChangeTransition::Explicit, &[(RemoveNode, 7)]),
        ] {
            let change = change(transition, steps);
            let bytes = change.write_to_bytes().expect("an encoding");
            let mut again = ConfChangeV2::default();
            again.merge_from_bytes(&bytes).expect("a change");
            assert_eq!(again, change);
        }
    }

    #[test]
    fn bytes_that_encode_no_change_are_refused() {
        for bytes in [&[3][..], &[0, 0], &[0, 3, 0, 0, 0, 0, 0, 0, 0, 1], &[0; 20]] {
            let refused = ConfChangeV2::default().merge_from_bytes(bytes);
            assert_eq!(refused, Err(ProtobufError::Malformed), "{bytes:?}");
        }
        // The engine leaves a joint configuration by an entry without bytes.
        let mut leave = change(ConfChangeTransition::Explicit, &[]);
        leave.merge_from_bytes(&[]).expect("a change");
        assert!(leave.leave_joint());
    }

    #[test]
    fn several_members_change_by_a_joint_configuration() {
        use ConfChangeType::{AddNode, RemoveNode};
        let enter = |transition, steps: &[_]| change(transition, steps).enter_joint();
        assert_eq!(enter(ConfChangeTransition::Auto, &[(AddNode, 1)]), None);
        assert_eq!(enter(ConfChangeTransition::Auto, &[(AddNode, 1), (RemoveNode, 2)]), Some(true));
        assert_eq!(enter(ConfChangeTransition::Implicit, &[(AddNode, 1)]), Some(true));
        assert_eq!(enter(ConfChangeTransition::Explicit, &[(AddNode, 1)]), Some(false));
    }
}
