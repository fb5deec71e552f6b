package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// owners are those of all that is in a folder, links not followed; versions of files are called "..version".
func owners(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if parts := strings.SplitN(name, "/", 2); strings.HasPrefix(parts[0], "..2") {
			parts[0] = "..version"
			name = strings.Join(parts, "/")
		}
		s := info.Sys().(*syscall.Stat_t)
		out[name] = fmt.Sprintf("%d:%d", s.Uid, s.Gid)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLinksHaveTheirFilesOwners: as the kubelet's, all in a volume has the fsGroup, links too, and a link to a
// token belongs to the token's user.
func TestLinksHaveTheirFilesOwners(t *testing.T) {
	a := &api{configMaps: map[string]*v1.ConfigMap{"ca": {Data: map[string]string{"ca.crt": "one"}}}}
	m := realManager(t, a, "100Mi")
	user, group, mode := int64(4141), int64(4242), int32(0o644)
	p := servicePod()
	p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user, FSGroup: &group}
	p.Spec.Volumes = append(p.Spec.Volumes, volumeOf("plain", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: "ca"}, DefaultMode: &mode}}))
	mounted, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	is := func(what string) {
		t.Helper()
		for dir, want := range map[string]map[string]string{
			mounted["access"].HostPath: {
				"..version/token":     "4141:4242",
				"token":               "4141:4242",
				"ca":                  "0:4242",
				"namespace":           "0:4242",
				"..data":              "0:4242",
				"..version":           "0:4242",
				"..version/ca":        "0:4242",
				"..version/ca/ca.crt": "0:4242",
				"..version/namespace": "0:4242",
				".":                   "0:4242",
			},
			mounted["plain"].HostPath: {"ca.crt": "0:4242", "..data": "0:4242", "..version": "0:4242",
				"..version/ca.crt": "0:4242", ".": "0:4242"},
		} {
			if got := owners(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s, %s:\ngot  %v\nwant %v", what, filepath.Base(dir), got, want)
			}
		}
	}
	is("mounted")
	// What a version before gave to root is mended, and then left alone.
	link := filepath.Join(mounted["plain"].HostPath, "ca.crt")
	if err := os.Lchown(link, 0, 0); err != nil {
		t.Fatal(err)
	}
	var changed [2]time.Time
	for i := range changed {
		if err := m.Refresh(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(link)
		if err != nil {
			t.Fatal(err)
		}
		at := info.Sys().(*syscall.Stat_t).Ctim
		changed[i] = time.Unix(at.Unix())
	}
	is("refreshed")
	if !changed[0].Equal(changed[1]) {
		t.Error("a refresh without a change changed a link")
	}
	a.configMaps["ca"].Data["ca.crt"] = "two"
	if err := m.Refresh(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	is("changed")
}

// TestGivingFollowsNoLink: what a volume links to outside of it stays its owner's.
func TestGivingFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	volume, outside := filepath.Join(dir, "volume"), filepath.Join(dir, "outside")
	if err := errors.Join(os.Mkdir(volume, 0o700), os.WriteFile(outside, nil, 0o600),
		os.Symlink(outside, filepath.Join(volume, "link"))); err != nil {
		t.Fatal(err)
	}
	group := int64(4242)
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it gives files away")
	}
	if err := giveToGroup(volume, &group, groupWrites); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(outside)
	if err != nil || info.Mode().Perm() != 0o600 || info.Sys().(*syscall.Stat_t).Gid != 0 {
		t.Errorf("%v, %v", info, err)
	}
	if got := owners(t, volume); got["link"] != "0:4242" {
		t.Errorf("%v", got)
	}
}

// TestTheFolderIsGivenLast: a walk that ends early must not look like a whole one to OnRootMismatch.
func TestTheFolderIsGivenLast(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Not even root may change what is immutable.
	last := filepath.Join(dir, "2")
	setImmutable(t, last, true)
	defer setImmutable(t, last, false)
	group := int64(4242)
	if err := giveToGroup(dir, &group, groupWrites); err == nil {
		t.Fatal("an immutable file was given away")
	}
	got := owners(t, dir)
	if got["0"] != "0:4242" || got["."] != "0:0" {
		t.Errorf("after a walk that ended early: %v", got)
	}
}

// TestWhatAFileSystemRefuses: as with the kubelet, a pod gets its volume although some of it cannot be given to its
// group.
func TestWhatAFileSystemRefuses(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	immutable := filepath.Join(dir, "1")
	setImmutable(t, immutable, true)
	defer setImmutable(t, immutable, false)
	call := giveCall{Dir: dir, Group: 4242}
	refused, err := giveVolume.Do(t.Context(), Operations(), dir, call)
	if err != nil || refused.Count != 1 || !strings.Contains(refused.First, "operation not permitted") {
		t.Errorf("%+v, %v", refused, err)
	}
	want := map[string]string{".": "0:4242", "0": "0:4242", "1": "0:0", "2": "0:4242"}
	if got := owners(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("owners are %v", got)
	}
}

// TestGivingKeepsWhatElseAFileIs: what is right already is not touched again, and setuid stays as with the kubelet.
func TestGivingKeepsWhatElseAFileIs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "su")
	if err := errors.Join(os.WriteFile(path, nil, 0o755), os.Chmod(path, 0o755|fs.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	group := int64(4242)
	var changed []unix.Timespec
	for range 2 {
		if err := giveToGroup(dir, &group, groupWrites); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Mode&0o7777 != 0o4775 || st.Gid != 4242 {
			t.Errorf("mode %o, group %d, %v", st.Mode, st.Gid, err)
		}
		changed = append(changed, st.Ctim)
	}
	if changed[0] != changed[1] {
		t.Error("a file that was right was changed")
	}
}

func setImmutable(t *testing.T, path string, on bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const immutable = 0x10 // FS_IMMUTABLE_FL
	flags := 0
	if on {
		flags = immutable
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
		t.Fatal(err)
	}
}
