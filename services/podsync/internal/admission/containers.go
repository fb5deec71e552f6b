package admission

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/images"
)

// Users answers what containers run as.
type Users interface {
	// User is what a container runs as; nil where the runtime does not say.
	User(ctx context.Context, id string) (*runtimeapi.LinuxContainerUser, error)
}

// Judge decides which containers of an admitted pod may run. No container runs as a user or in a group of the node
// agent, unless its pod is a helper with that role. Judge checks the pod, the container, the user of the image, and the
// user that the runtime reports for the created container. It admits ephemeral containers as its helpers do.
type Judge struct {
	Helpers
	users Users
}

// NewJudge returns a Judge.
func NewJudge(helpers Helpers, users Users) Judge { return Judge{helpers, users} }

// AdmitImage judges a container before it is created.
func (j Judge) AdmitImage(p *v1.Pod, of *v1.Container, image *images.Image) Result {
	return j.Helpers.AdmitImage(p, of, image.UID)
}

// CheckCreated returns what judges a container after it was created, by
// the runtime's word: only it knows what the image's own lists make of a name, and which groups they give.
func (j Judge) CheckCreated(p *v1.Pod, of *v1.Container, image *images.Image) runtime.Check {
	return func(ctx context.Context, id string) error {
		user, err := j.users.User(ctx, id)
		switch {
		case err != nil:
			return err
		case user == nil && image.User != "" && !SetsUser(p, of):
			return &runtime.RefusedError{
				Message: fmt.Sprintf("container %q runs as user %q of its image, and the runtime does not say which number that "+
					"is: set runAsUser, "+
					"since the users of the node agent are forbidden to it", of.Name, image.User),
			}
		case user == nil: // a number, which was judged before
			return nil
		}
		if v := j.Helpers.AdmitUser(p, of, user.GetUid(),
			append([]int64{user.GetGid()}, user.GetSupplementalGroups()...)); !v.Admitted() {
			return &runtime.RefusedError{Message: v.Message}
		}
		return nil
	}
}
