//! Nodes.

use super::Api;
use super::access::Identity;
use super::rows::node_row;
use axum::extract::State;
use axum::{Extension, Json};
use wattline_api::{NodeList, Problem};

/// All nodes.
#[utoipa::path(get, path = "/v1/nodes", responses(
    (status = 200, body = NodeList), (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn list(
    State(api): State<Api>,
    Extension(who): Extension<Identity>,
) -> Json<NodeList> {
    let read_model = api.daemon.read_model();
    let ids = read_model.cluster.node_ids();
    Json(NodeList {
        schema: "wattline.nodes/1".to_owned(),
        now_s: api.daemon.cluster_clock().now().seconds(),
        nodes: ids.filter_map(|id| node_row(&read_model, id, &who)).collect(),
    })
}
