//! One request over HTTP/1, for the few documents that the broker sends or reads as a client.

use std::io;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Sends a request on a new connection, which it closes, and returns the response. Fails if the body is longer than
/// `bytes_max`.
pub(crate) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
    bytes_max: usize,
) -> io::Result<Response<Bytes>> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // The exchange owns the sender: when it ends, the connection closes.
    let exchange = async move {
        let (head, body) = sender.send_request(request).await.map_err(io::Error::other)?.into_parts();
        let body = Limited::new(body, bytes_max).collect().await.map_err(io::Error::other)?;
        Ok::<_, io::Error>(Response::from_parts(head, body.to_bytes()))
    };
    let (answer, closed) = tokio::join!(exchange, connection);
    let answer = answer?;
    closed.map_err(io::Error::other)?;
    Ok(answer)
}
