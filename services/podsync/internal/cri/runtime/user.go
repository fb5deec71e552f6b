package runtime

import (
	"context"
	"encoding/json"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// User is what a container runs as, once it was created: by then the runtime has looked up names, and the groups that
// the image's own lists give. It is nil if the runtime does not say.
func (r *Runtime) User(ctx context.Context, id string) (*runtimeapi.LinuxContainerUser, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	for _, verbose := range []bool{false, true} { // runtimes before CRI's field of 1.31 report it among the details
		resp, err := r.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: verbose})
		if err != nil {
			return nil, fmt.Errorf("user of container %s: %w", id, err)
		}
		if user := resp.GetStatus().GetUser().GetLinux(); user != nil {
			return user, nil
		}
		if user := userOf(resp.GetInfo()["info"]); user != nil {
			return user, nil
		}
	}
	return nil, nil
}

// userOf reads the OCI configuration that containerd and CRI-O show in a verbose status; nil if it is not there.
func userOf(info string) *runtimeapi.LinuxContainerUser {
	var details struct {
		RuntimeSpec *struct {
			Process *struct {
				User struct {
					UID            int64   `json:"uid"`
					GID            int64   `json:"gid"`
					AdditionalGids []int64 `json:"additionalGids"`
				} `json:"user"`
			} `json:"process"`
		} `json:"runtimeSpec"`
	}
	if info == "" || json.Unmarshal([]byte(info), &details) != nil || details.RuntimeSpec == nil ||
		details.RuntimeSpec.Process == nil {
		return nil
	}
	user := details.RuntimeSpec.Process.User
	return &runtimeapi.LinuxContainerUser{Uid: user.UID, Gid: user.GID, SupplementalGroups: user.AdditionalGids}
}
