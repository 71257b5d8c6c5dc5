//! Requests' bodies and queries.

use super::Api;
use super::refusal::{Answer, Refusal};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use wattline_api::MOST_IN_A_PAGE;

/// A body of JSON, as it came and as what it means.
pub(super) struct Input<T> {
    pub(super) value: T,
    pub(super) text: Vec<u8>,
}

impl<T: DeserializeOwned> FromRequest<Api> for Input<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, api: &Api) -> Answer<Self> {
        let text = read(request, api, api.limits.body).await?;
        Ok(Self { value: parse(&text, api.limits.nesting)?, text })
    }
}

/// Reads a body that says it is JSON.
pub(super) async fn read(request: Request, api: &Api, most: usize) -> Answer<Vec<u8>> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if kind != Some("application/json") {
        let detail = "the body is not said to be JSON";
        return Err(Refusal::bad(detail, "send \"Content-Type: application/json\""));
    }
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(Refusal::too_large(most));
    }
    let body = axum::body::to_bytes(request.into_body(), most);
    match tokio::time::timeout(api.limits.read, body).await {
        Err(_) => Err(Refusal::too_slow()),
        Ok(Err(_)) => Err(Refusal::too_large(most)),
        Ok(Ok(bytes)) => Ok(bytes.into()),
    }
}

/// What a body means; names the field where it means nothing.
pub(super) fn parse<T: DeserializeOwned>(text: &[u8], nesting: usize) -> Answer<T> {
    if depth(text) > nesting {
        let detail = format!("the JSON is nested more than {nesting} deep");
        return Err(Refusal::bad(detail, "no request needs that"));
    }
    let mut document = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut document).map_err(|error| {
        let field = error.path().to_string();
        let inner = error.into_inner().to_string();
        if field == "." {
            Refusal::bad(inner, "send the JSON that /openapi.json describes")
        } else {
            Refusal::field(&field, inner)
        }
    })?;
    let end = document.end();
    end.map_err(|error| Refusal::bad(error.to_string(), "send one JSON value and no more"))?;
    Ok(value)
}

/// How deep JSON is nested, whether it is sound or not.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0_usize, 0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// A query; names the field where it means nothing.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|error| {
            let source = std::error::Error::source(&error);
            let detail = source.map_or_else(|| error.to_string(), ToString::to_string);
            Refusal::bad(
                format!("the query: {detail}"),
                "GET /openapi.json lists what may be asked",
            )
        })
    }
}

/// Rows of a page, if nothing else is asked for.
const USUAL_PAGE: u32 = 100;

/// So many rows are asked for.
pub(super) fn page_size(limit: Option<u32>) -> Answer<usize> {
    let limit = limit.unwrap_or(USUAL_PAGE);
    if !(1..=MOST_IN_A_PAGE).contains(&limit) {
        let detail = format!("{limit} is not between 1 and {MOST_IN_A_PAGE}");
        return Err(Refusal::field("limit", detail));
    }
    Ok(limit as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_outside_of_strings() {
        assert_eq!(depth(br#"{"a":[1,{"b":"[[[[\"[["}]}"#), 3);
        assert_eq!(depth(b"]]]][["), 2);
        assert_eq!(depth(b""), 0);
    }
}
