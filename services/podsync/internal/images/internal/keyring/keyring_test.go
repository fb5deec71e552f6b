package keyring

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// secret holds for each registry one user of that name.
func secret(registries map[string]string) v1.Secret {
	var auths []string
	for registry, user := range registries {
		auth := base64.StdEncoding.EncodeToString([]byte(user + ":pw:" + user))
		auths = append(auths, fmt.Sprintf("%q: {\"auth\": %q}", registry, auth))
	}
	return v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "regcred", UID: "1"}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths": {` + strings.Join(auths, ",") + `}}`)},
	}
}

func users(auths []Auth) []string {
	var names []string
	for _, a := range auths {
		names = append(names, a.Username)
	}
	return names
}

func TestLookup(t *testing.T) {
	for _, test := range []struct {
		name       string
		registries map[string]string
		repository string
		want       []string
	}{
		{"host", map[string]string{"registry.example": "a"}, "registry.example/app", []string{"a"}},
		{"another host", map[string]string{"registry.example": "a"}, "other.example/app", nil},
		{"scheme and API path", map[string]string{"https://registry.example/v2/": "a"}, "registry.example/app",
			[]string{"a"}},
		{"specific first", map[string]string{"registry.example": "host", "registry.example/team": "team"},
			"registry.example/team/app", []string{"team", "host"}},
		{"path of others", map[string]string{"registry.example/team": "team"}, "registry.example/other/app", nil},
		{"glob", map[string]string{"*.example": "any"}, "registry.example/app", []string{"any"}},
		{"a glob is one label", map[string]string{"*.example": "any"}, "a.b.example/app", nil},
		{"port", map[string]string{"registry.example:5000": "a"}, "registry.example:5000/app", []string{"a"}},
		{"another port", map[string]string{"registry.example": "a"}, "registry.example:5000/app", nil},
		{"docker hub", map[string]string{"https://index.docker.io/v1/": "hub"}, "docker.io/library/busybox", []string{"hub"}},
		{"docker hub is for its own", map[string]string{"https://index.docker.io/v1/": "hub"}, "registry.example/busybox",
			nil},
		{"docker.io by name", map[string]string{"docker.io": "hub"}, "docker.io/library/busybox", []string{"hub"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			k, err := FromSecrets([]v1.Secret{secret(test.registries)})
			if err != nil {
				t.Fatal(err)
			}
			if got := users(k.Lookup(test.repository)); !slices.Equal(got, test.want) {
				t.Fatalf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestSecretsInTheirOrder(t *testing.T) {
	old := v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Type: v1.SecretTypeDockercfg, Data: map[string][]byte{
		v1.DockerConfigKey: []byte(`{"registry.example": {"username": "second", "password": "pw", "email": "me@example"}}`),
	}}
	opaque := v1.Secret{Type: v1.SecretTypeOpaque, Data: map[string][]byte{v1.DockerConfigJsonKey: []byte("no")}}
	empty := v1.Secret{Type: v1.SecretTypeDockerConfigJson}
	k, err := FromSecrets([]v1.Secret{opaque, empty, secret(map[string]string{"registry.example": "first"}), old})
	if err != nil {
		t.Fatal(err)
	}
	got := k.Lookup("registry.example/app")
	regcred := Owner{Secret, "default", "regcred", "1"}
	if want := []Auth{
		{Username: "first", Password: "pw:first", Owner: regcred},
		{Username: "second", Password: "pw", Email: "me@example", Owner: Owner{Kind: Secret, Name: "old"}},
	}; !slices.Equal(got, want) {
		t.Fatalf("got %v", got)
	}
}

func TestBrokenSecretsAreNamedAndNotShown(t *testing.T) {
	for _, data := range []string{`{"auths": "hunter2"}`, `{"auths": {"r": {"auth": "aHVudGVyMg=="}}}`,
		`{"auths": {"r": {"auth": "!hunter2"}}}`, `hunter2`} {
		s := secret(nil)
		s.Data[v1.DockerConfigJsonKey] = []byte(data)
		_, err := FromSecrets([]v1.Secret{s})
		if err == nil || !strings.Contains(err.Error(), "default/regcred") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", data, err)
		}
	}
}

func TestFromNode(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(t.TempDir())
	t.Setenv("HOME", filepath.Join(dir, "home"))
	if k, err := FromNode(dir); err != nil || k.Lookup("registry.example/app") != nil {
		t.Fatalf("nothing there: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".dockercfg"), []byte(`{"registry.example": {"username": "old"}}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	if k, err := FromNode(dir); err != nil || !slices.Equal(users(k.Lookup("registry.example/app")), []string{"old"}) {
		t.Fatalf("the old form: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"),
		[]byte(`{"auths": {"registry.example": {"username": "new"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if k, err := FromNode(dir); err != nil || !slices.Equal(users(k.Lookup("registry.example/app")), []string{"new"}) {
		t.Fatalf("the new form: %v", err)
	}
}

// TestHash: the SHA-256 of the JSON {"username":…,"password":…,"email":…} as encoding/json escapes it, without empty
// fields.
func TestHash(t *testing.T) {
	for _, test := range []struct {
		auth Auth
		want string
	}{
		{Auth{Username: "alice", Password: "pw"}, "0ebb427357984c52187e7ca46d9942351fe4e48397b0e06a6e6d7c85182d5fa8"},
		{
			Auth{Username: "alice", Password: "p<w&\"", Email: "a@example"},
			"4ce4cfb3234fd29ea6ceb8442a7f4fe2c194bc6285a27db71b2156ca93d07a23",
		},
		{Auth{}, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
	} {
		if got := test.auth.Hash(); got != test.want {
			t.Errorf("%+v: %s, want %s", test.auth, got, test.want)
		}
	}
}

func FuzzKeyring(f *testing.F) {
	f.Add([]byte(`{"auths": {"https://index.docker.io/v1/": {"auth": "YTpi"}}}`), "docker.io/library/busybox")
	f.Add([]byte(`{"registry.example:5000/team": {"username": "a", "password": "b"}}`),
		"registry.example:5000/team/app")
	f.Add([]byte(`{"auths": {"[": {}, "*.[a": {}}}`), "x.[a/b")
	f.Fuzz(func(t *testing.T, data []byte, repository string) {
		for _, old := range []bool{true, false} {
			auths, err := parse(data, old)
			if err != nil {
				continue
			}
			k := &Keyring{}
			k.Add(Owner{}, auths)
			if found := k.Lookup(repository); len(found) > len(auths) {
				t.Fatalf("%d credentials of %d", len(found), len(auths))
			}
		}
	})
}
