//! The daemon: groups, lanes and their life from start to stop.

use std::path::Path;

use crate::control::model::ExamineDoc;
use crate::control::{Answer, ApiError, ErrorCode, ServeOptions};

/// Runs the daemon until it is told to stop.
pub fn serve(options: ServeOptions) -> Result<(), ApiError> {
    Err(ApiError::new(ErrorCode::DaemonStart, format!("no daemon on this branch for {options:?}")))
}

/// Reads what lies on a drive.
pub fn examine(drive: &Path) -> Answer<ExamineDoc> {
    Err(ApiError::new(ErrorCode::DriveNotFound, format!("no daemon on this branch for {}", drive.display())))
}
