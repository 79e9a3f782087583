//! Test vectors of users and access control.

use bytes::BytesMut;
use engine::ErrorKind;
use engine::security::{
    AccessKeyId, AccessSecret, Account, Acl, AclFilter, Credential, Match, Mechanism, Operation, Pattern, PatternKind,
    Principal, QuotaEntity, QuotaKind, QuotaSubject, ResourceKind, RoleName, TenantName, TokenId, UserName, Which,
};
use wire::{AccessKeyInfo, QuotaChange, Request, SecurityRequest, SecurityResponse, TokenInfo, UserInfo};

use crate::vectors::frame_of;

fn ann() -> UserName {
    UserName::parse("ann").expect("a name")
}

fn acl() -> Acl {
    Acl {
        pattern: Pattern { kind: ResourceKind::Topic, name: "orders.".into(), matching: PatternKind::Prefix },
        principal: Principal::User(ann()),
        host: "*".into(),
        operation: Operation::Read,
        is_allowed: true,
    }
}

fn denied() -> Acl {
    let pattern = Pattern { kind: ResourceKind::Cluster, name: "cluster".into(), matching: PatternKind::Literal };
    Acl { pattern, principal: Principal::Everyone, operation: Operation::All, is_allowed: false, ..acl() }
}

fn of_role() -> Acl {
    let pattern = Pattern { kind: ResourceKind::Cache, name: "db0/user:*".into(), matching: PatternKind::Glob };
    Acl { pattern, principal: Principal::Role(auditors()), ..acl() }
}

fn auditors() -> RoleName {
    RoleName::parse("auditors").expect("a name")
}

fn token_id() -> TokenId {
    TokenId::of_bytes([0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef])
}

fn put_token(expires_ms: Option<u64>) -> SecurityRequest {
    SecurityRequest::PutToken { id: token_id(), hash: [0xcc; 32], user: ann(), roles: vec![auditors()], expires_ms }
}

fn token(expires_ms: Option<u64>) -> TokenInfo {
    TokenInfo { id: token_id(), user: ann(), roles: vec![auditors()], created_ms: 1_690_000_000_000, expires_ms }
}

fn key_id() -> AccessKeyId {
    "AKIAIOSFODNN7EXAMPLE".parse().expect("an id")
}

fn account() -> Account {
    "111122223333".parse().expect("an account")
}

fn put_access_key(account: Option<Account>, expires_ms: Option<u64>) -> SecurityRequest {
    let secret = AccessSecret::parse("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY").expect("a secret");
    SecurityRequest::PutAccessKey { id: key_id(), secret, user: ann(), account, expires_ms }
}

fn access_key(account: Option<Account>, expires_ms: Option<u64>) -> AccessKeyInfo {
    AccessKeyInfo { id: key_id(), user: ann(), account, created_ms: 1_690_000_000_000, expires_ms }
}

/// Returns an entity of each form.
fn entities() -> Vec<QuotaEntity> {
    let of = |subject, client| QuotaEntity { subject, client, address: None };
    let at = |address| QuotaEntity { address: Some(address), ..QuotaEntity::default() };
    vec![
        of(Some(QuotaSubject::User(ann())), None),
        of(Some(QuotaSubject::EachUser), Some(Which::One("app".into()))),
        of(Some(QuotaSubject::Role(auditors())), Some(Which::Default)),
        at(Which::One("2001:db8::1".parse().expect("an address"))),
        at(Which::Default),
        of(Some(QuotaSubject::Tenant(TenantName::parse("acme").expect("a name"))), None),
    ]
}

fn quota_changes() -> Vec<QuotaChange> {
    let set = |entity| QuotaChange { entity, kind: QuotaKind::BytesIn, value: Some(1_048_576.0) };
    let mut changes: Vec<QuotaChange> = entities().into_iter().map(set).collect();
    changes.push(QuotaChange { kind: QuotaKind::Connections, value: None, ..changes[4].clone() });
    changes.push(QuotaChange { kind: QuotaKind::StoredBytes, ..changes[5].clone() });
    changes
}

pub fn requests() -> Vec<(&'static str, SecurityRequest)> {
    let of = |mechanism, bytes: usize| {
        let stored_key = vec![0xaa; bytes];
        let server_key = vec![0xbb; bytes];
        Credential::of_keys(mechanism, 4096, vec![0x11; 16], stored_key, server_key).expect("a credential")
    };
    let one = AclFilter {
        kind: Some(ResourceKind::Group),
        name: Some("billing".into()),
        matching: Match::Covering,
        principal: Some(Principal::Everyone),
        host: Some("10.0.0.1".into()),
        operation: Some(Operation::IdempotentWrite),
        is_allowed: Some(false),
    };
    let both = vec![of(Mechanism::Sha256, 32), of(Mechanism::Sha512, 64)];
    vec![
        ("user_put", SecurityRequest::PutUser { user: ann(), credentials: both }),
        ("user_delete", SecurityRequest::DeleteUser { user: ann(), mechanisms: Vec::new() }),
        ("user_delete_one", SecurityRequest::DeleteUser { user: ann(), mechanisms: vec![Mechanism::Sha512] }),
        ("user_list", SecurityRequest::ListUsers),
        ("acl_create", SecurityRequest::CreateAcls(vec![acl(), denied()])),
        ("acl_create_of_role", SecurityRequest::CreateAcls(vec![of_role()])),
        ("member_set", SecurityRequest::SetMember { user: ann(), role: auditors(), is_present: true }),
        ("member_list", SecurityRequest::ListMembers),
        ("token_put", put_token(Some(1_700_000_000_000))),
        ("token_put_endless", put_token(None)),
        (
            "token_put_own",
            SecurityRequest::PutOwnToken { id: token_id(), hash: [0xcc; 32], expires_ms: 1_700_000_000_000 },
        ),
        ("token_delete", SecurityRequest::DeleteToken(token_id())),
        ("token_list", SecurityRequest::ListTokens),
        ("access_key_put", put_access_key(Some(account()), Some(1_700_000_000_000))),
        ("access_key_put_endless", put_access_key(None, None)),
        ("access_key_delete", SecurityRequest::DeleteAccessKey(key_id())),
        ("access_key_list", SecurityRequest::ListAccessKeys),
        ("quota_change", SecurityRequest::ChangeQuotas(quota_changes())),
        ("quota_list", SecurityRequest::ListQuotas),
        ("tenant_set", SecurityRequest::SetTenant { user: ann(), tenant: Some(acme()) }),
        ("tenant_unset", SecurityRequest::SetTenant { user: ann(), tenant: None }),
        ("tenant_list", SecurityRequest::ListTenants),
        ("acl_delete", SecurityRequest::DeleteAcls(one)),
        ("acl_list", SecurityRequest::ListAcls(AclFilter::default())),
        ("acl_list_allowed", SecurityRequest::ListAcls(AclFilter { is_allowed: Some(true), ..AclFilter::default() })),
    ]
}

fn acme() -> TenantName {
    TenantName::parse("acme").expect("a name")
}

fn quota_values() -> Vec<(QuotaKind, f64)> {
    vec![(QuotaKind::BytesOut, 1000.0), (QuotaKind::Requests, 0.5)]
}

pub fn responses() -> Vec<(&'static str, SecurityResponse)> {
    let mechanisms = vec![(Mechanism::Sha256, 4096), (Mechanism::Sha512, 16_384)];
    let user = UserInfo { name: ann(), mechanisms, is_configured: false, is_super: true };
    vec![
        ("user_put", SecurityResponse::UserPut),
        ("member_set", SecurityResponse::MemberSet),
        ("members", SecurityResponse::Members(vec![(ann(), vec![auditors()])])),
        ("token_put", SecurityResponse::TokenPut),
        ("own_token_put", SecurityResponse::OwnTokenPut(ann())),
        ("token_deleted", SecurityResponse::TokenDeleted),
        ("tokens", SecurityResponse::Tokens(vec![token(Some(1_700_000_000_000)), token(None)])),
        ("access_key_put", SecurityResponse::AccessKeyPut),
        ("access_key_deleted", SecurityResponse::AccessKeyDeleted),
        (
            "access_keys",
            SecurityResponse::AccessKeys(vec![
                access_key(Some(account()), Some(1_700_000_000_000)),
                access_key(None, None),
            ]),
        ),
        ("quotas_changed", SecurityResponse::QuotasChanged),
        ("quotas", SecurityResponse::Quotas(entities().into_iter().map(|of| (of, quota_values())).collect())),
        ("tenant_set", SecurityResponse::TenantSet),
        ("tenants", SecurityResponse::Tenants(vec![(ann(), acme())])),
        ("user_deleted", SecurityResponse::UserDeleted),
        ("users", SecurityResponse::Users(vec![user])),
        ("acls_created", SecurityResponse::AclsCreated),
        ("acls_deleted", SecurityResponse::AclsDeleted(vec![acl()])),
        ("acls", SecurityResponse::Acls(vec![denied(), acl()])),
    ]
}

#[test]
fn an_address_has_one_text() {
    let mut encoded = BytesMut::new();
    Request::Security(SecurityRequest::ChangeQuotas(quota_changes())).encode(1, &mut encoded);
    let at = encoded.windows(11).position(|bytes| bytes == b"2001:db8::1").expect("the address");
    for other in [b"2001:DB8::1", b"0201:db8::1"] {
        encoded[at..at + 11].copy_from_slice(other);
        let refused = Request::decode(frame_of(&encoded)).expect_err("another text");
        assert_eq!(refused.kind, ErrorKind::Invalid);
        assert!(refused.message.ends_with("db8::1'"), "{refused}");
    }
}
