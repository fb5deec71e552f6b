package admission

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/proto/role"
)

// ReasonHelperForbidden is the reason of a pod that reaches for what belongs to the node agent.
const ReasonHelperForbidden = "HelperForbidden"

// Helpers lets only the pods of one namespace be helpers of the node agent: no other pod may mount the
// agent's own folder, where its sockets and keys are, or run as the user of one of its services beside a
// volume of the host's, through which it could reach a socket as that service.
//
// It judges what the pod says, so that it answers at once: a link on the host that leads into the folder is
// not followed, and neither is a volume of what holds it, such as "/", refused. Both give a pod no more than
// the rights of a host's user, which is why the users are judged as well.
type Helpers struct {
	// Namespace whose pods may.
	Namespace string
	// Folders are all names of the agent's folder.
	Folders []string
}

// FoldersOf returns the names of a folder: as it is given, and as the host's links have it, such as /run and
// /var/run.
func FoldersOf(dir string) []string {
	names := []string{filepath.Clean(dir)}
	if target, err := filepath.EvalSymlinks(dir); err == nil && target != names[0] {
		names = append(names, target)
	}
	if target, err := filepath.EvalSymlinks("/var/run"); err == nil && target == "/run" {
		for _, name := range names {
			if below, ok := strings.CutPrefix(name, "/run/"); ok {
				names = append(names, filepath.Join("/var/run", below))
			}
		}
	}
	return names
}

// Admit implements Handler.
func (h Helpers) Admit(_ context.Context, a *Attributes) Verdict {
	p := a.Pod
	if p.Namespace == h.Namespace {
		return Verdict{}
	}
	host := ""
	for i := range p.Spec.Volumes {
		volume := &p.Spec.Volumes[i]
		if volume.HostPath == nil {
			continue
		}
		host = volume.Name
		for _, folder := range h.Folders {
			if path := filepath.Clean("/" + volume.HostPath.Path); path == folder || strings.HasPrefix(path, folder+"/") {
				return h.forbid("volume %q mounts %s of the node agent's own folder %s", volume.Name, volume.HostPath.Path, h.Folders[0])
			}
		}
	}
	if host == "" {
		return Verdict{}
	}
	if c := p.Spec.SecurityContext; c != nil {
		if r := helper(c.RunAsUser); r != "" {
			return h.forbid("the pod runs as user %d, which is the node agent's service %s, and mounts volume %q of the host", *c.RunAsUser, r, host)
		}
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if v := h.container(&c, host); !v.Admitted() {
			return v
		}
	}
	return Verdict{}
}

// AdmitEphemeral judges an ephemeral container, which comes to a pod that was admitted without it.
func (h Helpers) AdmitEphemeral(p *v1.Pod, c *v1.Container) Verdict {
	if p.Namespace == h.Namespace {
		return Verdict{}
	}
	for i := range p.Spec.Volumes {
		if p.Spec.Volumes[i].HostPath != nil {
			return h.container(c, p.Spec.Volumes[i].Name)
		}
	}
	return Verdict{}
}

// container judges a container of a pod that mounts a volume of the host.
func (h Helpers) container(c *v1.Container, host string) Verdict {
	if c.SecurityContext == nil {
		return Verdict{}
	}
	r := helper(c.SecurityContext.RunAsUser)
	if r == "" {
		return Verdict{}
	}
	return h.forbid("container %q runs as user %d, which is the node agent's service %s, and the pod mounts volume %q of the host",
		c.Name, *c.SecurityContext.RunAsUser, r, host)
}

func (h Helpers) forbid(format string, args ...any) Verdict {
	return Verdict{Reason: ReasonHelperForbidden, Message: fmt.Sprintf(format, args...) +
		fmt.Sprintf(": only pods of the namespace %q may (--helper-namespace)", h.Namespace)}
}

// helper is the service that runs as the user.
func helper(uid *int64) role.Role {
	if uid == nil || *uid == 0 {
		return ""
	}
	for _, r := range role.ByUID(int(*uid)) {
		return r
	}
	return ""
}
