package images

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/credentialplugin"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/pullrecords"
)

func newRecords(t *testing.T, root string,
	policy kubeletv1beta1.ImagePullCredentialsVerificationPolicy) *pullrecords.Records {
	t.Helper()
	r, err := pullrecords.New(pullrecords.Options{RootDir: root, Policy: policy, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = r.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// secretOf is a pull secret of the registry, with the name of its user.
func secretOf(user, password string) v1.Secret {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	return v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: user, UID: types.UID("uid-" + user)},
		Type:       v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{
			v1.DockerConfigJsonKey: []byte(`{"auths": {"registry.example": {"auth": "` + auth + `"}}}`),
		},
	}
}

// guarded has pulls of the app succeed with a password alone, and returns who tried.
func (b *bench) guarded(password string) *[]string {
	tried := &[]string{}
	b.fake.SetPull(app, fake.Pull{Auth: func(a *runtimeapi.AuthConfig) error {
		*tried = append(*tried, a.GetUsername())
		if a.GetPassword() != password {
			return status.Error(codes.Unknown, "denied to "+a.GetUsername())
		}
		return nil
	}})
	return tried
}

// TestAnImageOfAnotherPod: it is there because another pod could pull it. A pod that cannot does not get it, and does
// not learn that it is there.
func TestAnImageOfAnotherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, pullerOptions{})
		tried := b.guarded("right")
		ref, err := b.ensure(t.Context(), "owner", app, v1.PullIfNotPresent, secretOf("ann", "right"))
		if err != nil {
			t.Fatal(err)
		}
		b.said()
		_, err = b.ensure(t.Context(), "none", app, v1.PullIfNotPresent)
		b.expectError(err, ReasonPull, "denied to ")
		b.said()
		_, err = b.ensure(t.Context(), "never", app, v1.PullNever, secretOf("bob", "wrong"))
		b.expectError(err, ReasonNeverPull, `Container image "`+app+`" is not present with pull policy of Never`)
		b.expectEvents(`Warning ErrImageNeverPull Container image "`+app+`" is not present with pull policy of Never`,
			"Warning Failed Error: ErrImageNeverPull")
		for _, policy := range []v1.PullPolicy{v1.PullIfNotPresent, v1.PullNever} {
			got, err := b.ensure(t.Context(), "friend", app, policy, secretOf("copy", "wrong"), secretOf("ann", "right"))
			if err != nil || got != ref {
				t.Errorf("%s: %q, %v", policy, got, err)
			}
			b.expectEvents(`Normal Pulled Container image "` + app +
				`" already present on machine and can be accessed by the pod`)
		}
		if want := []string{"ann", ""}; !slices.Equal(*tried, want) {
			t.Errorf("pulls were tried as %q, want %q", *tried, want)
		}
		// A pull that succeeds with another credential adds it.
		b.guarded("other")
		if _, err := b.ensure(t.Context(), "carl", app, v1.PullIfNotPresent, secretOf("carl", "other")); err != nil {
			t.Error(err)
		}
		for _, s := range []v1.Secret{secretOf("carl", "other"), secretOf("ann", "right")} {
			if got, err := b.ensure(t.Context(), "late", app, v1.PullNever, s); err != nil || got != ref {
				t.Errorf("%s: %q, %v", s.Name, got, err)
			}
		}
	})
}

func TestWithoutRecordsEveryPodMayUseAnImage(t *testing.T) {
	b := newBench(t, pullerOptions{})
	b.puller.opts.Records = nil
	b.guarded("right")
	if _, err := b.ensure(t.Context(), "owner", app, v1.PullAlways, secretOf("ann", "right")); err != nil {
		t.Fatal(err)
	}
	b.said()
	if _, err := b.ensure(t.Context(), "none", app, v1.PullNever); err != nil {
		t.Error(err)
	}
	b.expectEvents(`Normal Pulled Container image "` + app + `" already present on machine`)
}

// TestAPullThatIsGivenUp: the runtime may have the image by then, so it does not become everyone's.
func TestAPullThatIsGivenUp(t *testing.T) {
	for name, hang := range map[string]fake.Pull{
		"by the pod":     {Hang: true},
		"by the runtime": {Err: status.Error(codes.Unavailable, "transport is closing")},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, pullerOptions{})
			b.fake.SetPull(app, hang)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := b.ensure(ctx, "owner", app, v1.PullIfNotPresent, secretOf("ann", "right")); err == nil {
				t.Error("it succeeded")
			}
			b.fake.AddImage(app)
			b.guarded("right")
			if _, err := b.ensure(t.Context(), "none", app, v1.PullNever); err == nil {
				t.Errorf("%s: the image is everyone's", name)
			}
			if _, err := b.ensure(t.Context(), "friend", app, v1.PullIfNotPresent, secretOf("ann", "right")); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

func TestAPullThatCannotBeRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		b := newBench(t, pullerOptions{Records: newRecords(t, root, kubeletv1beta1.AlwaysVerify)})
		if err := os.RemoveAll(filepath.Join(root, "image_manager")); err != nil {
			t.Fatal(err)
		}
		tried := b.guarded("right")
		_, err := b.ensure(t.Context(), "web", app, v1.PullAlways, secretOf("ann", "right"))
		var shown *Error
		if !errors.As(err, &shown) || shown.Reason != ReasonPull ||
			!strings.HasPrefix(shown.Message, `Failed to record image pull intent for container image "`+app+`"`) {
			t.Errorf("got %v", err)
		}
		if len(*tried) != 0 {
			t.Errorf("it was pulled as %q", *tried)
		}
	})
}

// TestSecretsThatCannotBeReadAndAnImageThatIsThere: a record is compared with them, so the pull says what is wrong.
func TestSecretsThatCannotBeReadAndAnImageThatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, pullerOptions{})
		b.guarded("right")
		if _, err := b.ensure(t.Context(), "owner", app, v1.PullAlways, secretOf("ann", "right")); err != nil {
			t.Fatal(err)
		}
		broken := secretOf("ann", "right")
		broken.Data[v1.DockerConfigJsonKey] = []byte("{")
		const message = "image pull secret default/ann: it is not the JSON of a docker configuration"
		for _, policy := range []v1.PullPolicy{v1.PullIfNotPresent, v1.PullNever} {
			_, err := b.ensure(t.Context(), "web", app, policy, broken)
			b.expectError(err, ReasonPull, message)
		}
	})
}

// TestPlugins: the pod's secrets come first, then the node's configuration, then plugins; what a plugin returns without
// a pod's token is the node's.
func TestPlugins(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n" + `echo '{"apiVersion": "credentialprovider.kubelet.k8s.io/v1",
		"kind": "CredentialProviderResponse", "cacheKeyType": "Image",
		"auth": {"registry.example": {"username": "plugin", "password": "right"}}}'` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "cred"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"),
		[]byte(`{"auths": {"registry.example": {"username": "node", "password": "wrong"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	plugins, err := credentialplugin.New(credentialplugin.Options{
		Config: &credentialplugin.Config{Providers: []kubeletv1.CredentialProvider{{
			Name: "cred", APIVersion: "credentialprovider.kubelet.k8s.io/v1", MatchImages: []string{"registry.example"},
			DefaultCacheDuration: &metav1.Duration{Duration: time.Minute},
		}}}, BinDir: dir, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, pullerOptions{Plugins: plugins, RootDir: dir})
	tried := b.guarded("right")
	if _, err := b.ensure(t.Context(), "web", app, v1.PullIfNotPresent, secretOf("ann", "wrong")); err != nil {
		t.Error(err)
	}
	if want := []string{"ann", "node", "plugin"}; !slices.Equal(*tried, want) {
		t.Errorf("tried %q, want %q", *tried, want)
	}
	if _, err := b.ensure(t.Context(), "other", app, v1.PullNever); err != nil {
		t.Errorf("an image that was pulled with the node's credentials: %v", err)
	}
}
