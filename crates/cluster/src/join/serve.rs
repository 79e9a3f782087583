//! Answers to programs that ask to join.

use std::sync::atomic::Ordering;
use std::time::SystemTime;

use engine::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::message::{Answer, Granted, Request, request_bytes};
use super::{ADMISSION_LIMIT, Admission, Candidate, Token};
use crate::identity::{check_address, seconds};
use crate::link::{Frame, Refusal};
use crate::transport::{HANDSHAKE_LIMIT, Shared, closed, read_frame, write_frame};

/// Reads one request and answers it.
pub(crate) async fn serve(shared: &Shared, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Result<()> {
    let reading = timeout(HANDSHAKE_LIMIT, read_frame(stream, request_bytes)).await;
    let (kind, body) =
        reading.map_err(|elapsed| Error::new(ErrorKind::Timeout, format!("{elapsed}; {}", closed())))??;
    let decided = match Request::decode(kind, body) {
        Ok(request) => decide(shared, request).await,
        Err(error) => Err(error),
    };
    let chunks = match decided {
        Ok(answer) => answer.encode(),
        Err(error) => {
            tracing::warn!(%error, "a program was not admitted to the cluster");
            shared.join_refusals.fetch_add(1, Ordering::Relaxed);
            Frame::Refusal(Refusal::new(error.message)).encode()
        }
    };
    write_frame(stream, &chunks).await?;
    // The other side has what it needs.
    drop(stream.shutdown().await);
    Ok(())
}

async fn decide(shared: &Shared, request: Request) -> Result<Answer> {
    let Request { token, advertise, program, format } = request;
    let token = Token::parse(&token)?;
    check_address(&advertise)?;
    let deciding = async {
        let _one_at_a_time = shared.admission.lock().await;
        token.check(&shared.identity, SystemTime::now(), &*shared.admits)?;
        let candidate = Candidate { token: token.id, expires: token.expires, advertise, program, format };
        shared.admits.admit(candidate).await
    };
    let admission = timeout(ADMISSION_LIMIT, deciding).await.map_err(|elapsed| {
        Error::new(
            ErrorKind::Timeout,
            format!("the cluster did not decide in time: {elapsed}; it may have no majority"),
        )
    })??;
    let identity = &shared.identity;
    Ok(match admission {
        Admission::NotLeader { address } => Answer::NotLeader { address },
        Admission::Admitted { node, nodes, seal_key } => {
            tracing::info!(node, at = seconds(SystemTime::now()), "a node was admitted to the cluster");
            Answer::Granted(Granted {
                cluster: identity.cluster(),
                node,
                ids: identity.ids(),
                certificate: identity.authority().certificate.to_vec(),
                key: Zeroizing::new(identity.authority().key_der().to_vec()),
                seal_key: Zeroizing::new(seal_key),
                nodes,
            })
        }
    })
}
