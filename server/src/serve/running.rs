//! The tasks of a serving node, and their end in order.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::{GRACE, ServeError};
use crate::keeping::KeepError;
use crate::membership::MembershipError;
use crate::transport::Transport;

/// The tasks of a serving node.
pub(super) struct Running {
    pub(super) serving: JoinHandle<()>,
    pub(super) member: JoinHandle<Result<(), MembershipError>>,
    pub(super) copying: JoinHandle<Result<(), KeepError>>,
    pub(super) tasks: TaskTracker,
    pub(super) transport: Arc<Transport>,
    /// Ends the HTTP API, then the tasks, then the copying of metadata.
    pub(super) http_stop: CancellationToken,
    pub(super) inner: CancellationToken,
    pub(super) copied: CancellationToken,
}

impl Running {
    /// Serves until `stop`, or until the node has lost its membership or its metadata; then ends all tasks in order.
    pub(super) async fn until(mut self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let (mut left, mut fenced) = (None, None);
        tokio::select! {
            () = stop => {}
            ended = &mut self.member => left = Some(ended),
            ended = &mut self.copying => fenced = Some(ended),
        }
        info!("stopping");
        self.http_stop.cancel();
        let all = async {
            // Requests under way may end while everything that answers them still runs.
            self.serving.await?;
            self.inner.cancel();
            self.tasks.close();
            let left = match left {
                Some(left) => left,
                None => self.member.await,
            };
            self.tasks.wait().await;
            self.copied.cancel();
            let fenced = match fenced {
                Some(fenced) => fenced,
                None => self.copying.await,
            };
            self.transport.close().await;
            left??;
            Ok::<_, ServeError>(fenced??)
        };
        match tokio::time::timeout(GRACE, all).await {
            Ok(ended) => ended,
            Err(_) => {
                warn!(remaining = self.tasks.len(), "tasks outlived the shutdown grace");
                Ok(())
            }
        }
    }
}
