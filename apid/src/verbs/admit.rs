//! Where the verbs ask admission.

use apimachinery::object::Object;
use apimachinery::status::Status;

use super::Call;
use super::options::DeleteOptions;

impl Call<'_> {
    /// Admits a new object; admission may change it.
    pub(super) async fn admit_create(&self, _new: &mut Object, _dry_run: bool) -> Result<(), Status> {
        Ok(())
    }

    /// Admits an update; admission may change it.
    pub(super) async fn admit_update(
        &self,
        _new: &mut Object,
        _old: &Object,
        _dry_run: bool,
    ) -> Result<(), Status> {
        Ok(())
    }

    /// Admits a delete.
    pub(super) async fn admit_delete(&self, _old: &Object, _options: &DeleteOptions) -> Result<(), Status> {
        Ok(())
    }
}
