package admission

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/internal/podutil"
)

// ReasonHelperForbidden is the reason of a pod that reaches for what belongs to the node agent.
const ReasonHelperForbidden = "HelperForbidden"

// Helpers lets only helper pods reach for what is the node agent's: those of one namespace that carry the label
// microlet.dev/role with the role that they have. No other pod may mount the agent's own folder, where its sockets and
// keys are, or ask for one of its users or groups, whatever else it asks for: what one pod cannot reach, another may
// hand to it over a socket, such as an open folder of the host. A helper may have the user and groups of its own role
// only.
//
// Any user that may create pods in the namespace has the roles of all helpers. So there is no such namespace unless an
// operator has named one, which must then exist and be guarded.
//
// It judges what the pod says, so that it answers at once. A link on the host that leads into the folder is not
// followed here: what podsync itself looks at, a hostPath with a type and a subPath, is judged again when it is mounted
// (volumes.Options.Private). A volume of what holds the folder, such as "/", is not refused. Both give a pod no more
// than the rights of a host's user, which is why users and groups are judged as well. Those that an image brings are
// not known yet when a pod is admitted; AdmitImage and AdmitUser judge them when a container is created, in pods that
// reach nothing of the host, too: another pod may have their volumes as a hostPath, and hand them a folder of the host
// there.
//
// In a user namespace of the pod's own, the agent's users and groups are others to the kernel. Yet the files of a
// volume keep the owners that they have on the node. So they are judged in a pod with a volume that has files of
// others, or that others get to see.
type Helpers struct {
	// Namespace of the helper pods; empty: there are none.
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

// Role is the role that the pod is a helper for; empty if it is none.
func (h Helpers) Role(p *v1.Pod) role.Role {
	if r := role.Role(p.Labels[peer.LabelRole]); h.Namespace != "" && p.Namespace == h.Namespace && peer.MayHelp(r) {
		return r
	}
	return ""
}

// Admit implements Handler.
func (h Helpers) Admit(_ context.Context, a *Attributes) Result {
	p := a.Pod
	own := h.Role(p)
	if label, ok := p.Labels[peer.LabelRole]; ok && own == "" && h.Namespace != "" && p.Namespace == h.Namespace {
		return Result{
			Reason: ReasonHelperForbidden,
			Message: fmt.Sprintf("label %s is %q, which no pod can be: use one of %v", peer.LabelRole, label,
				helperRoles()),
		}
	}
	for i := range p.Spec.Volumes {
		volume := &p.Spec.Volumes[i]
		if volume.HostPath == nil || own != "" {
			continue
		}
		for _, path := range shown(p, volume) {
			if h.isPrivate(path) {
				return h.forbid("volume %q mounts %s of the node agent's own folder %s", volume.Name, path,
					h.Folders[0])
			}
		}
	}
	if v := h.pod(p, own); !v.Admitted() {
		return v
	}
	for c := range podutil.Containers(&p.Spec) {
		if v := h.container(p, c); !v.Admitted() {
			return v
		}
	}
	return Result{}
}

// shown are the paths of the node that the pod's containers see of a hostPath: all of it, or a subPath.
func shown(p *v1.Pod, volume *v1.Volume) []string {
	paths := []string{volume.HostPath.Path}
	for c := range podutil.Containers(&p.Spec) {
		for _, m := range c.VolumeMounts {
			if m.Name == volume.Name && m.SubPath != "" {
				paths = append(paths, filepath.Join(volume.HostPath.Path, m.SubPath))
			}
		}
	}
	return paths
}

// rootOf is the host's root by another name: as a process of the host sees it, or has it as its folder, which most do
// that run for long.
var rootOf = regexp.MustCompile(`^/proc/[^/]+(/task/[^/]+)?/(root|cwd)(/|$)`)

// isPrivate reports whether a path is the agent's folder or below it.
func (h Helpers) isPrivate(path string) bool {
	path = filepath.Clean("/" + path)
	for at := rootOf.FindString(path); at != ""; at = rootOf.FindString(path) {
		path = filepath.Clean("/" + strings.TrimPrefix(path, at))
	}
	return slices.ContainsFunc(h.Folders,
		func(folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") })
}

// AdmitEphemeral judges an ephemeral container, which comes to a pod that was admitted without it.
func (h Helpers) AdmitEphemeral(p *v1.Pod, c *v1.Container) Result {
	return h.container(p, c)
}

// AdmitImage judges a container by the user of its image, before it is created. A name says nothing: only the image
// knows which user it is.
func (h Helpers) AdmitImage(p *v1.Pod, c *v1.Container, uid *int64) Result {
	if uid == nil || SetsUser(p, c) || !foreignUser(h.Role(p), *uid) || hasOwnIDs(p) {
		return Result{}
	}
	return h.forbid("container %q runs as user %d by its image, which is %s", c.Name, *uid, owner(*uid))
}

// AdmitUser judges what the runtime says a created container has: what an image's own lists of users and groups give it
// is known then.
func (h Helpers) AdmitUser(p *v1.Pod, c *v1.Container, uid int64, gids []int64) Result {
	if hasOwnIDs(p) {
		return Result{}
	}
	if foreignUser(h.Role(p), uid) {
		return h.forbid("container %q runs as user %d by its image, which is %s", c.Name, uid, owner(uid))
	}
	for _, gid := range gids {
		if foreignGroup(h.Role(p), gid) {
			return h.forbid("container %q is in the group %d by its image, which is the node agent's", c.Name, gid)
		}
	}
	return Result{}
}

// pod judges what the pod gives to all of its containers.
func (h Helpers) pod(p *v1.Pod, own role.Role) Result {
	sc := p.Spec.SecurityContext
	if sc == nil || hasOwnIDs(p) {
		return Result{}
	}
	if u := sc.RunAsUser; u != nil && foreignUser(own, *u) {
		return h.forbid("the pod runs as user %d, which is %s", *u, owner(*u))
	}
	for _, groups := range []struct {
		field string
		gids  []int64
	}{{"runAsGroup", value(sc.RunAsGroup)}, {"fsGroup", value(sc.FSGroup)},
		{"supplementalGroups", sc.SupplementalGroups}} {
		for _, gid := range groups.gids {
			if foreignGroup(own, gid) {
				return h.forbid("the pod is in the group %d (%s), which is the node agent's", gid, groups.field)
			}
		}
	}
	return Result{}
}

// container judges what a container says of itself.
func (h Helpers) container(p *v1.Pod, c *v1.Container) Result {
	sc, own := c.SecurityContext, h.Role(p)
	if sc == nil || hasOwnIDs(p) {
		return Result{}
	}
	if u := sc.RunAsUser; u != nil && foreignUser(own, *u) {
		return h.forbid("container %q runs as user %d, which is %s", c.Name, *u, owner(*u))
	}
	if g := sc.RunAsGroup; g != nil && foreignGroup(own, *g) {
		return h.forbid("container %q is in the group %d (runAsGroup), which is the node agent's", c.Name, *g)
	}
	return Result{}
}

func (h Helpers) forbid(format string, args ...any) Result {
	who := fmt.Sprintf("only pods of the namespace %q with the label %s may, as the role that it names "+
		"(--helper-namespace)", h.Namespace, peer.LabelRole)
	if h.Namespace == "" {
		who = "no pod may, since --helper-namespace names no namespace of helper pods"
	}
	return Result{Reason: ReasonHelperForbidden, Message: fmt.Sprintf(format, args...) + ": " + who}
}

// hasOwnIDs reports whether the users and groups of the pod are not those of the node: they are in a user namespace,
// and no file of a volume has them. What podsync writes and a container only reads has no owner of a container's
// choice.
func hasOwnIDs(p *v1.Pod) bool {
	return podutil.OwnUsers(&p.Spec) && !slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool {
		return v.ConfigMap == nil && v.Secret == nil && v.DownwardAPI == nil && v.Projected == nil && v.Image == nil
	})
}

// ReachesHost reports whether the pod has a way to files of the host, to those that its processes have open, or to
// sockets that processes of the host have too. What its images run as is then asked for before a container of it is
// created.
func ReachesHost(p *v1.Pod) bool {
	host := func(v v1.Volume) bool {
		// What a claim comes to may be a folder of the host.
		return v.HostPath != nil || v.PersistentVolumeClaim != nil || v.Ephemeral != nil
	}
	return p.Spec.HostPID || p.Spec.HostNetwork || p.Spec.HostIPC || slices.ContainsFunc(p.Spec.Volumes, host)
}

// foreignUser reports whether the user is the node agent's and not that of the helper's own role.
func foreignUser(own role.Role, uid int64) bool {
	identity, err := role.Get(own)
	return role.Reserved(uid) && (err != nil || uid != int64(identity.UID))
}

// foreignGroup reports whether the group is the node agent's and not one of the helper's own role.
func foreignGroup(own role.Role, gid int64) bool {
	identity, err := role.Get(own)
	return role.Reserved(gid) &&
		(err != nil || gid != int64(identity.GID) && !slices.Contains(identity.Groups, int(gid)))
}

// owner names the owner of the user ID.
func owner(uid int64) string {
	for _, r := range role.ByUID(int(uid)) {
		return "the node agent's service " + string(r)
	}
	return "reserved for the node agent"
}

// SetsUser reports whether the pod itself says what the container runs as.
func SetsUser(p *v1.Pod, c *v1.Container) bool {
	if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
		return true
	}
	return p.Spec.SecurityContext != nil && p.Spec.SecurityContext.RunAsUser != nil
}

func helperRoles() []role.Role {
	return slices.DeleteFunc(role.All(), func(r role.Role) bool { return !peer.MayHelp(r) })
}

func value(of *int64) []int64 {
	if of == nil {
		return nil
	}
	return []int64{*of}
}
