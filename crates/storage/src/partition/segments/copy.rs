//! Segments as they are at one moment, for a reader that copies them while the partition goes on.

use std::path::PathBuf;
use std::sync::Arc;

use engine::Result;

use super::super::index::Index;
use super::super::scan::Epochs;
use super::{Segments, View};
use crate::disk::{Disk, failed};
use crate::info::SegmentInfo;

/// Segment at one moment. Its file may grow, but the described bytes never change. It is not open.
pub(crate) struct CopiedSegment {
    pub(crate) info: SegmentInfo,
    pub(crate) path: PathBuf,
    index_path: PathBuf,
    index: Option<Arc<Index>>,
    is_sealed: bool,
    epochs: Epochs,
}

impl CopiedSegment {
    /// Opens the file.
    pub(crate) fn view(&self, disk: &Arc<dyn Disk>) -> Result<View> {
        let file = disk.open(&self.path).map_err(failed("open", &self.path))?.into();
        let (path, index_path) = (self.path.clone(), self.index_path.clone());
        let Self { info, index, is_sealed, epochs, .. } = self;
        let (info, index, is_sealed, epochs) = (*info, index.clone(), *is_sealed, *epochs);
        Ok(View { disk: disk.clone(), path, index_path, file, info, index, is_sealed, epochs })
    }
}

impl Segments {
    /// Returns the segments with what is committed in them.
    pub(crate) fn copies(&self) -> Vec<CopiedSegment> {
        let infos = self.committed_infos();
        let copy = |(at, info): (usize, SegmentInfo)| CopiedSegment {
            info,
            path: self.log_path(&info),
            index_path: self.index_path(&info),
            // Without an index that only this process has, the growing segment would be read from its beginning.
            index: self.list.get(at).and_then(|segment| segment.index.clone()),
            is_sealed: at + 1 < self.list.len(),
            epochs: self.epochs,
        };
        infos.into_iter().enumerate().map(copy).collect()
    }
}
