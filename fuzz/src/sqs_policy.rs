//! The policy of an SQS queue is refused, or it is rendered as a policy with exactly the entries that are left of it.
//!
//! Input: eight bytes with a bit for each entry that is deleted, and the policy.

use doors::sqs::check_policy;

pub fn check(input: &[u8]) {
    let Some((gone, policy)) = input.split_first_chunk() else { return };
    let Ok(policy) = std::str::from_utf8(policy) else { return };
    let is_valid = check_policy(policy, u64::from_be_bytes(*gone));
    // Whether it is valid does not depend on what is left.
    assert_eq!(check_policy(policy, 0), is_valid);
}
