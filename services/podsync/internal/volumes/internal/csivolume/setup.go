package csivolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	csidriver "github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi"
)

// What a driver reads of a volume's context.
const (
	keyPodName        = "csi.storage.k8s.io/pod.name"
	keyPodNamespace   = "csi.storage.k8s.io/pod.namespace"
	keyPodUID         = "csi.storage.k8s.io/pod.uid"
	keyServiceAccount = "csi.storage.k8s.io/serviceAccount.name"
	keyEphemeral      = "csi.storage.k8s.io/ephemeral"
	keyTokens         = "csi.storage.k8s.io/serviceAccount.tokens" //nolint:gosec // the name of a key
)

// setup is one attempt to give a volume to a pod.
type setup struct {
	*Volume
	vs     *Volumes
	device device
	driver *csidriver.Driver
	can    csidriver.Capabilities
	// object is nil if the cluster has none for the driver.
	object *storagev1.CSIDriver
	// target is where the driver mounts the volume for the pod.
	target string
	// label is the SELinux label with which the volume is mounted; see settleLabel.
	label string
	// locked is the volume, of which no other caller has a call.
	locked *lockedVolume
	// publishContext is what the controller that attached the volume says to the node.
	publishContext map[string]string
}

// first is the step that fails if nothing was begun.
func (s *setup) first() string {
	if s.PV != nil {
		return s.steps().stage
	}
	return s.steps().setUp
}

func (s *setup) steps() steps {
	if s.isBlock() {
		return mapSteps
	}
	return mountSteps
}

func (s *setup) republishes() bool { return s.object != nil && ptrIs(s.object.Spec.RequiresRepublish) }

func (s *setup) stages() bool { return s.PV != nil && s.can.Stages() }

func (s *setup) staging() string {
	if s.isBlock() {
		return s.vs.layout.blockStaging(s.PV.Name)
	}
	return filepath.Join(s.vs.layout.device(s.device), staging)
}

// dir is the folder of the volume on the node.
func (s *setup) dir() string {
	if s.isBlock() {
		return s.vs.layout.block(s.PV.Name)
	}
	return s.vs.layout.device(s.device)
}

// data is what is known of the volume when it is published.
func (s *setup) data() volumeData {
	data := volumeData{
		Driver: s.device.driver, Handle: s.device.handle, Name: s.name(), Node: s.vs.o.Node,
		Attachment: attachmentName(s.device, s.vs.o.Node), Label: s.label,
	}
	if !s.isBlock() {
		data.Mode = string(s.mode())
	}
	return data
}

// supported says why the driver takes no volume of this kind. The errors are the kubelet's.
func (s *setup) supported() error {
	switch {
	case s.object == nil && s.PV != nil:
		return nil
	case s.object == nil:
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", s.mode(), s.device.driver)
	case !slices.Contains(s.object.Spec.VolumeLifecycleModes, s.mode()):
		return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", s.mode(), s.device.driver,
			s.object.Spec.VolumeLifecycleModes)
	}
	return nil
}

// attachable reports whether a controller attaches the volume to the node.
func (s *setup) attachable() bool {
	return s.PV != nil && attachRequired(s.object)
}

// attachRequired reports whether a driver's volumes are attached; nil is a driver without an object.
func attachRequired(d *storagev1.CSIDriver) bool {
	return d == nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// attached asks whether the volume is attached to the node. The errors are the kubelet's.
func (s *setup) attached(ctx context.Context) error {
	if !s.attachable() {
		return nil
	}
	name := attachmentName(s.device, s.vs.o.Node)
	attachment, err := s.vs.o.API.VolumeAttachment(ctx, name)
	switch {
	case err != nil:
		return fmt.Errorf("volume %v has GET error for volume attachment %v: %w", s.device.handle, name, err)
	case attachment.DeletionTimestamp != nil:
		return errors.New("volume attachment is being deleted")
	case attachment.Status.Attached:
		s.publishContext = attachment.Status.AttachmentMetadata
		return nil
	case attachment.Status.AttachError != nil:
		return errors.New(attachment.Status.AttachError.Message)
	}
	return fmt.Errorf("volume %v is not attached for volume attachment %v", s.device.handle, name)
}

// stage has the driver make the volume ready for all pods of the node.
func (s *setup) stage(ctx context.Context) error {
	source := s.PV.Spec.CSI
	secrets, err := s.secrets(ctx, "NodeStageSecretRef", source.NodeStageSecretRef)
	if err != nil {
		return err
	}
	dir := s.vs.layout.device(s.device)
	data := volumeData{Driver: s.device.driver, Handle: s.device.handle, Label: s.label}
	if s.isBlock() {
		// It is that of the volume on the node and of the pods' alike.
		dir, data = s.vs.layout.blockData(s.PV.Name), s.data()
	}
	if err := data.save(dir); err != nil {
		return err
	}
	if err := makeMountPoint(s.staging()); err != nil {
		return err
	}
	request := &csi.NodeStageVolumeRequest{
		VolumeId: s.device.handle, StagingTargetPath: s.staging(), PublishContext: s.publishContext,
		VolumeCapability: s.capability(source.FSType), VolumeContext: source.VolumeAttributes, Secrets: secrets,
	}
	err = s.locked.call(ctx, func(ctx context.Context) error { return s.driver.Stage(ctx, request) })
	if csidriver.Final(err) && s.isBlock() {
		s.noteLeft(s.vs.layout.block(s.PV.Name), s.vs.layout.removeBlock(ctx, s.PV.Name))
	} else if csidriver.Final(err) {
		s.noteLeft(dir, remove(ctx, dir, staging))
	}
	return err
}

// publish has the driver give the volume to the pod.
func (s *setup) publish(ctx context.Context) error {
	attributes, fsType, secrets, err := s.source(ctx)
	if err != nil {
		return err
	}
	if s.object != nil && ptrIs(s.object.Spec.PodInfoOnMount) {
		attributes = merged(attributes, s.podInfo())
	}
	tokens, inSecrets, err := s.tokens(ctx)
	if err != nil {
		return err
	}
	if inSecrets {
		secrets = merged(secrets, tokens)
	} else {
		attributes = merged(attributes, tokens)
	}
	dir := filepath.Dir(s.target)
	before := exists(filepath.Join(dir, dataFile))
	if err := s.announce(); err != nil {
		return err
	}
	request := &csi.NodePublishVolumeRequest{
		VolumeId: s.device.handle, TargetPath: s.target, Readonly: s.ReadOnly, PublishContext: s.publishContext,
		VolumeCapability: s.capability(fsType), VolumeContext: attributes, Secrets: secrets,
	}
	if s.stages() {
		request.StagingTargetPath = s.staging()
	}
	err = s.locked.call(ctx, func(ctx context.Context) error { return s.driver.Publish(ctx, request) })
	// What the pod may have had before the call stays: its containers see the folder, and the driver has to be asked to
	// unpublish. Of a block volume the pod's link stays, whose only effect is that the driver is asked.
	if csidriver.Final(err) && !before && !s.isBlock() {
		s.noteLeft(dir, remove(ctx, dir, target))
	}
	return err
}

// announce notes the volume on the disk, before the driver publishes it: after a crash the pod still has it.
func (s *setup) announce() error {
	if s.isBlock() {
		return s.announceBlock()
	}
	return s.data().save(filepath.Dir(s.target))
}

// noteLeft logs that the folder of a call that the driver has refused could not be removed. What is mounted there
// stays.
func (s *setup) noteLeft(dir string, err error) {
	if err != nil {
		s.vs.o.Log.Debug("folder of a volume that its driver refused stays", logkey.Dir, dir, logkey.Err, err,
			slog.String("driver", s.device.driver))
	}
}

// source is what the volume's source says of publishing.
func (s *setup) source(ctx context.Context) (attributes map[string]string, fsType string, secrets map[string]string,
	err error) {
	if s.PV != nil {
		source := s.PV.Spec.CSI
		secrets, err = s.secrets(ctx, "NodePublishSecretRef", source.NodePublishSecretRef)
		return source.VolumeAttributes, source.FSType, secrets, err
	}
	if s.Inline.FSType != nil {
		fsType = *s.Inline.FSType
	}
	if ref := s.Inline.NodePublishSecretRef; ref != nil {
		secrets, err = s.secrets(ctx, "NodePublishSecretRef",
			&v1.SecretReference{Namespace: s.Pod.Namespace, Name: ref.Name})
	}
	return s.Inline.VolumeAttributes, fsType, secrets, err
}

func (s *setup) secrets(ctx context.Context, field string, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	secret, err := s.vs.o.API.Secret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("fetching %s %s/%s failed: %w", field, ref.Namespace, ref.Name, err)
	}
	out := make(map[string]string, len(secret.Data))
	for k, value := range secret.Data {
		out[k] = string(value)
	}
	return out, nil
}

func (s *setup) podInfo() map[string]string {
	return map[string]string{
		keyPodName: s.Pod.Name, keyPodNamespace: s.Pod.Namespace, keyPodUID: string(s.Pod.UID),
		keyServiceAccount: s.Pod.Spec.ServiceAccountName, keyEphemeral: strconv.FormatBool(s.PV == nil),
	}
}

// tokens are those of the pod's service account that the driver asks for, by their audiences.
func (s *setup) tokens(ctx context.Context) (tokens map[string]string, inSecrets bool, err error) {
	// As the kubelet's, a block volume gets none.
	if s.isBlock() || s.object == nil || len(s.object.Spec.TokenRequests) == 0 {
		return nil, false, nil
	}
	granted := map[string]authenticationv1.TokenRequestStatus{}
	for _, wanted := range s.object.Spec.TokenRequests {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: wanted.ExpirationSeconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: s.Pod.Name, UID: s.Pod.UID,
			},
		}}
		if wanted.Audience != "" {
			request.Spec.Audiences = []string{wanted.Audience}
		}
		answer, err := s.vs.o.Tokens.Token(ctx, s.Pod.Namespace, s.Pod.Spec.ServiceAccountName, request)
		if err != nil {
			return nil, false, err
		}
		granted[wanted.Audience] = answer.Status
	}
	text, err := json.Marshal(granted)
	return map[string]string{keyTokens: string(text)}, ptrIs(s.object.Spec.ServiceAccountTokenInSecrets), err
}

func ptrIs(p *bool) bool { return p != nil && *p }

// capability is how the volume is to be used.
func (s *setup) capability(fsType string) *csi.VolumeCapability {
	if s.isBlock() {
		return &csi.VolumeCapability{
			AccessMode: s.accessMode(s.can),
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		}
	}
	m := &csi.VolumeCapability_MountVolume{FsType: fsType}
	if s.PV != nil {
		m.MountFlags = s.mountOptions()
	}
	if group := s.group(); group != nil && s.can.GivesToGroup() {
		m.VolumeMountGroup = strconv.FormatInt(*group, 10)
	}
	return &csi.VolumeCapability{
		AccessMode: s.accessMode(s.can), AccessType: &csi.VolumeCapability_Mount{Mount: m},
	}
}

func (s *setup) group() *int64 {
	if s.Pod.Spec.SecurityContext == nil {
		return nil
	}
	return s.Pod.Spec.SecurityContext.FSGroup
}

// giveToGroup reports whether the files are to be given to the pod's fsGroup here, since the driver does not.
func (s *setup) giveToGroup() bool {
	if s.group() == nil || s.ReadOnly || s.can.GivesToGroup() {
		return false
	}
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if s.object != nil && s.object.Spec.FSGroupPolicy != nil && *s.object.Spec.FSGroupPolicy != "" {
		policy = *s.object.Spec.FSGroupPolicy
	}
	switch policy {
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.FileFSGroupPolicy:
		return true
	}
	fsType := ""
	if s.PV != nil {
		fsType = s.PV.Spec.CSI.FSType
	} else if s.Inline.FSType != nil {
		fsType = *s.Inline.FSType
	}
	return fsType != "" && s.writesOnce()
}
